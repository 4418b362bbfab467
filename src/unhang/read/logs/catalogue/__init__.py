"""The catalogue: what each emitter can say, as data. One message a row: its layer, its role, and the cause that it speaks for alone."""
