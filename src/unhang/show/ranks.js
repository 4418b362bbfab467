// The table of all ranks: filtered, sorted, a page of rows at a time.

const ROWS = 20;

class RankTable {
  constructor(columns, culprits) {
    this.columns = columns;
    this.accused = new Set(culprits);
    this.count = columns[0].values.length;
    this.sorted = null;
    this.page = 0;
    this.filter = make("input", { type: "search", placeholder: "Filter: a rank, a host, a state, a line" });
    this.filter.setAttribute("aria-label", "Filter the ranks");
    this.filter.addEventListener("input", () => { this.page = 0; this.choose(); });
    this.back = make("button", { type: "button" }, "Previous");
    this.next = make("button", { type: "button" }, "Next");
    this.back.addEventListener("click", () => { this.page--; this.draw(); });
    this.next.addEventListener("click", () => { this.page++; this.draw(); });
    fill("rank-tools", this.filter, ...(this.count > ROWS ? [this.back, this.next] : []));
    this.choose();
  }

  text(column, row) {
    const value = column.values[row];
    return column.texts ? column.texts[value] : value === null ? "" : String(value);
  }

  /** Rows in which each word of the filter stands; a number alone names a rank. Culprits come first until a column is chosen. */
  choose() {
    const wanted = this.filter.value.trim().toLowerCase();
    const words = wanted.split(/\s+/).filter(Boolean);
    const rows = [];
    for (let row = 0; row < this.count; row++) {
      if (/^\d+$/.test(wanted) ? this.text(this.columns[0], row) === wanted : this.holds(row, words)) rows.push(row);
    }
    this.rows = rows.sort((a, b) => this.compare(a, b));
    this.draw();
  }

  holds(row, words) {
    if (!words.length) return true;
    const all = this.columns.map((c) => (c.name === "Rank" ? `rank ${this.text(c, row)}` : this.text(c, row))).join(" ").toLowerCase();
    return words.every((word) => all.includes(word));
  }

  compare(a, b) {
    if (!this.sorted) return this.accused.has(this.columns[0].values[b]) - this.accused.has(this.columns[0].values[a]) || a - b;
    const { column, way } = this.sorted;
    const [x, y] = [a, b].map((row) => (column.texts ? this.text(column, row) : column.values[row] ?? -1));
    return way * (x < y ? -1 : x > y ? 1 : 0) || a - b;
  }

  headCell(column) {
    const isSorted = this.sorted && this.sorted.column === column;
    const way = isSorted ? (this.sorted.way > 0 ? "ascending" : "descending") : "none";
    const button = make("button", { type: "button", className: "sort" }, column.name, isSorted ? (this.sorted.way > 0 ? " ↑" : " ↓") : "");
    button.addEventListener("click", () => {
      this.sorted = { column, way: isSorted ? -this.sorted.way : 1 };
      this.page = 0;
      this.choose();
      [...document.querySelectorAll("#rank-table .sort")][this.columns.indexOf(column)].focus();
    });
    return make("th", { scope: "col", "aria-sort": way }, button);
  }

  draw() {
    const pages = Math.max(1, Math.ceil(this.rows.length / ROWS));
    const first = this.page * ROWS;
    const body = this.rows.slice(first, first + ROWS).map((row) => make("tr", { className: this.accused.has(this.columns[0].values[row]) ? "culprit" : "" },
      this.columns.map((column) => make("td", { className: column.texts ? "" : "number", "data-name": column.name }, this.text(column, row)))));
    fill("rank-table", make("table", { className: "ranks" }, make("thead", null, make("tr", null, this.columns.map((c) => this.headCell(c)))), make("tbody", null, body)));
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page >= pages - 1;
    const last = Math.min(first + ROWS, this.rows.length);
    const among = this.rows.length < this.count ? ` (of ${this.count.toLocaleString("en")})` : "";
    byId("rank-note").textContent = !this.rows.length ? "No rank matches." : this.count > ROWS || among ? `${first + 1} to ${last} of ${this.rows.length.toLocaleString("en")} ranks${among}` : "";
  }
}

function showRanks(view) {
  const { columns } = view.rankTable;
  if (!columns.length) byId("ranks").hidden = true;
  else new RankTable(columns, view.culprits);
}
