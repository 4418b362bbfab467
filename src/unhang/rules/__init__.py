"""Rules: functions that find (`job/`, `machine/`), cards that speak (`cards/*.toml`), and the judge that asks them all."""
