import csv


def write_rows(path, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
