// The calls of the page as a trace that Perfetto opens.

/** Times in microseconds; a call that never ended lasts until the end of the recording. */
function traceOf(lanes, data) {
  const us = lanes.unit / 1000;
  const events = [];
  data.ranks.forEach((rank, i) => {
    events.push({ ph: "M", pid: rank, name: "process_name", args: { name: `rank ${rank}` } });
    events.push({ ph: "M", pid: rank, name: "process_sort_index", args: { sort_index: rank } });
    for (let n = data.offsets[i]; n < data.offsets[i + 1]; n++) {
      const [op, group, sizes, at] = lanes.kinds[data.kind[n]];
      const args = { group, sizes, at, state: ["ended", "ended, time not recorded", "waiting, never completed", "failed"][data.end[n]] };
      events.push({ ph: "X", pid: rank, tid: 1, name: `${op} #${data.seq[n]}`, ts: data.start[n] * us, dur: data.length[n] * us, args });
    }
  });
  for (const [rank, at, , text] of lanes.markers) events.push({ ph: "i", s: "p", pid: rank, tid: 1, name: text, ts: at * us });
  return events;
}

/** Saves the trace as a file, written in parts: a million calls are longer than one text may be. */
function saveTrace(lanes, data) {
  const events = traceOf(lanes, data);
  const parts = ['{"traceEvents":['];
  for (let n = 0; n < events.length; n += 10000) {
    parts.push(`${n ? "," : ""}${JSON.stringify(events.slice(n, n + 10000)).slice(1, -1)}`);
  }
  parts.push("]}");
  const link = make("a", { href: URL.createObjectURL(new Blob(parts, { type: "application/json" })), download: "trace.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
