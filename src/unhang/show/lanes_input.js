// The lanes answer to mouse, keys and buttons.

class LanesInput {
  constructor(lanes) {
    this.lanes = lanes;
    this.tip = byId("tip");
    const canvas = lanes.canvas;
    canvas.addEventListener("mousemove", (event) => this.hover(event));
    canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("mousedown", (event) => this.press(event));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("dblclick", () => this.show(lanes.lanes.focus));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => { lanes.selected = null; this.tip.hidden = true; lanes.draw(); });
    addEventListener("mousemove", (event) => this.pull(event));
    addEventListener("mouseup", () => this.release());
    this.makeTools();
  }

  makeTools() {
    const { lanes } = this.lanes;
    const button = (text, label, act) => {
      const made = make("button", { type: "button", title: label }, text);
      made.setAttribute("aria-label", label);
      made.addEventListener("click", act);
      return made;
    };
    this.near = button(lanes.onset === null ? "The end" : `Around the ${lanes.onsetName}`, "Show the last calls", () => this.show(lanes.focus));
    this.whole = button("Everything recorded", "Show the whole recording", () => this.show([0, lanes.end]));
    const isAll = lanes.focus[0] === 0 && lanes.focus[1] === lanes.end;
    const tools = [...(isAll ? [] : [this.near, this.whole]), button("−", "Zoom out", () => this.zoom(1.6)), button("+", "Zoom in", () => this.zoom(1 / 1.6)), button("Reset", "Back to the first view", () => this.show(lanes.focus))];
    if (this.lanes.groups.length > 1) {
      const select = make("select", null, make("option", { value: "op" }, "Colour by operation"), make("option", { value: "group" }, "Colour by group"));
      select.setAttribute("aria-label", "Colour");
      select.addEventListener("change", () => { this.lanes.byGroup = select.value === "group"; this.lanes.draw(); this.makeLegend(); });
      tools.unshift(select);
    }
    fill("lanes-tools", tools);
    this.markButtons();
  }

  markButtons() {
    const is = ([from, to]) => this.lanes.range[0] === from && this.lanes.range[1] === to;
    this.near.setAttribute("aria-pressed", String(is(this.lanes.lanes.focus)));
    this.whole.setAttribute("aria-pressed", String(is([0, this.lanes.lanes.end])));
  }

  /** Shows a range of time, kept within the recording and no narrower than 50 units. */
  show([from, to]) {
    const end = this.lanes.lanes.end;
    const span = Math.min(end, Math.max(50, to - from));
    const start = Math.min(Math.max(0, from), end - span);
    this.lanes.range = [start, start + span];
    this.tip.hidden = true;
    this.lanes.draw();
    this.markButtons();
  }

  zoom(factor, around = (this.lanes.range[0] + this.lanes.range[1]) / 2) {
    this.show(this.lanes.range.map((edge) => around + (edge - around) * factor));
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY / 300), this.lanes.time(event.offsetX));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.move((event.deltaX / this.lanes.plot) * (this.lanes.range[1] - this.lanes.range[0]));
    }
  }

  move(by) {
    this.show(this.lanes.range.map((edge) => edge + by));
  }

  press(event) {
    if (event.button !== 0 || event.offsetX < this.lanes.left) return;
    this.lanes.drag = { from: event.offsetX, to: event.offsetX, isMove: event.shiftKey };
  }

  pull(event) {
    const drag = this.lanes.drag;
    if (!drag) return;
    const x = event.clientX - this.lanes.canvas.getBoundingClientRect().left;
    if (drag.isMove) {
      this.move(this.lanes.time(drag.to) - this.lanes.time(x));
      drag.from = drag.to = x;
    } else {
      drag.to = x;
      this.lanes.draw();
    }
  }

  release() {
    const drag = this.lanes.drag;
    if (!drag) return;
    this.lanes.drag = null;
    const [from, to] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
    if (to - from > 5) this.show([this.lanes.time(from), this.lanes.time(to)]);
    else this.lanes.draw();
  }

  /** The call of rank number `i` at a time, or the nearest within a few pixels; -1 for none. */
  callAt(i, time) {
    const { start, length } = this.lanes.data;
    const [first, stop] = this.lanes.visible(i);
    const slack = (4 / this.lanes.plot) * (this.lanes.range[1] - this.lanes.range[0]);
    let best = -1;
    let bestGap = slack;
    for (let n = stop - 1; n >= first; n--) {
      const gap = Math.max(0, start[n] - time, time - start[n] - length[n]);
      if (gap < bestGap || (gap === 0 && best < 0)) [best, bestGap] = [n, gap];
      if (bestGap === 0) break;
    }
    return best;
  }

  hover(event) {
    if (this.lanes.drag) return;
    const row = this.lanes.rows.find((r) => event.offsetY >= r.y - 2 && event.offsetY < r.y + r.h + 2);
    if (!row || event.offsetX < this.lanes.left) { this.tip.hidden = true; return; }
    const time = this.lanes.time(event.offsetX);
    this.showTip(row, time, this.worst(row, time), event.offsetX, row.y + row.h);
  }

  /** In a band of ranks: the one whose state there is worst, as it is drawn. */
  worst(row, time) {
    let found = { rank: row.from, call: -1, weight: -1 };
    for (let i = row.from; i < row.to; i++) {
      const call = this.callAt(i, time);
      const away = this.lanes.away.get(i);
      const isAway = away && time >= away[0] && time <= away[1];
      const weight = isAway ? 9 : call < 0 ? 0 : 1 + this.lanes.data.end[call];
      if (weight > found.weight) found = { rank: i, call: isAway ? -1 : call, weight };
    }
    return found;
  }

  describe(row, time, found) {
    const { lanes, data } = this.lanes;
    const i = found.rank;
    const lines = [];
    if (found.call >= 0) {
      const n = found.call;
      const [op, group, sizes, at] = lanes.kinds[data.kind[n]];
      lines.push(`${op} #${data.seq[n]}${group ? ` of ${group}` : ""}`);
      if (sizes) lines.push(sizes);
      if (data.peer[n]) lines.push(`with rank ${data.peer[n] - 1}`);
      const took = spanText(this.lanes.seconds(data.length[n]));
      const end = data.end[n];
      lines.push(end === WAITING ? `waiting for ${took}, not completed` : end === FAILED ? `failed after ${took}` : end === ENDED ? `completed in ${took}` : "completed, when is not recorded");
      if (at) lines.push(at);
      lines.push(`issued at ${timeText(this.lanes.seconds(data.start[n]), 0.001)} of the time axis`);
    }
    const events = lanes.markers.filter((m) => m[0] === data.ranks[i] && Math.abs(this.lanes.x(m[1]) - this.lanes.x(time)) < 8);
    lines.push(...events.map((m) => m[3]));
    if (!lines.length) lines.push("in no recorded call");
    if (found.call < 0 || this.lanes.data.end[found.call] === WAITING) lines.push(lanes.wheres[data.places[i]]);
    return lines.filter(Boolean);
  }

  showTip(row, time, found, x, y) {
    const { data } = this.lanes;
    const steps = data.steps[found.rank] ? `, ${data.steps[found.rank] - 1} steps` : "";
    const band = row.pooled ? ` (of ${data.ranks[row.from]}-${data.ranks[row.to - 1]})` : "";
    const title = `rank ${data.ranks[found.rank]}${band}${steps}`;
    const lines = this.describe(row, time, found);
    this.tip.replaceChildren(make("b", null, title), ...lines.map((line) => make("div", null, line)));
    this.tip.hidden = false;
    const most = this.lanes.width - this.tip.offsetWidth - 8;
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, most))}px`;
    this.tip.style.top = `${y + 16}px`;
    return `${title}: ${lines.join(", ")}`;
  }

  key(event) {
    const step = (this.lanes.range[1] - this.lanes.range[0]) / 8;
    const act = {
      "+": () => this.zoom(1 / 1.6), "=": () => this.zoom(1 / 1.6), "-": () => this.zoom(1.6), 0: () => this.show(this.lanes.lanes.focus),
      PageUp: () => this.move(-step * 6), PageDown: () => this.move(step * 6), Home: () => this.show([0, step * 8]), End: () => this.show([this.lanes.lanes.end - step * 8, this.lanes.lanes.end]),
      ArrowLeft: () => this.walk(-1, 0), ArrowRight: () => this.walk(1, 0), ArrowUp: () => this.walk(0, -1), ArrowDown: () => this.walk(0, 1),
      Escape: () => { this.tip.hidden = true; },
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  }

  /** Moves the selection by calls and by rows, and speaks it. */
  walk(calls, rows) {
    const { data } = this.lanes;
    const all = this.lanes.rows;
    const old = this.lanes.selected;
    const number = old ? Math.min(all.length - 1, Math.max(0, all.indexOf(old.row) + rows)) : 0;
    const row = all[number];
    const [first, stop] = [data.offsets[row.from], data.offsets[row.from + 1]];
    const time = old && old.call >= 0 ? data.start[old.call] : this.lanes.range[1];
    let call = old && !rows ? Math.min(stop - 1, Math.max(first, old.call + calls)) : Math.max(this.callAt(row.from, time), first === stop ? -1 : stop - 1);
    if (first === stop) call = -1;
    this.lanes.selected = { row, call };
    const at = call >= 0 ? data.start[call] : this.lanes.range[1];
    if (at < this.lanes.range[0] || at > this.lanes.range[1]) this.move(at - (this.lanes.range[0] + this.lanes.range[1]) / 2);
    this.lanes.draw();
    const x = Math.max(this.lanes.left, Math.min(this.lanes.x(at), this.lanes.width));
    byId("spoken").textContent = this.showTip(row, at, { rank: row.from, call }, x, row.y + row.h);
  }

  makeLegend() {
    const lanes = this.lanes;
    const { colors, data } = lanes;
    const swatch = (paint) => {
      const box = make("canvas", { width: 36, height: 24 });
      const c = box.getContext("2d");
      c.fillStyle = paint;
      c.fillRect(0, 0, 36, 24);
      return box;
    };
    const used = new Set(lanes.byGroup ? lanes.classes.group : lanes.classes.op);
    const names = lanes.byGroup ? lanes.groups : FAMILIES;
    const entries = FAMILIES.map((_, i) => i).filter((i) => used.has(i)).map((i) => [colors.families[i], lanes.byGroup ? names.filter((_, g) => g % FAMILIES.length === i).slice(0, 4).join(", ") || "no group" : names[i] === "p2p" ? "send, recv" : names[i]]);
    if (data.end.includes(WAITING)) entries.push([lanes.hatched, "waiting, never completed"]);
    if (data.end.includes(FAILED)) entries.push([colors.bad, "failed"]);
    if (lanes.away.size) entries.push([colors.away, "culprit, in no recorded call"]);
    else if (lanes.accused.size) entries.push([colors.away, "culprit (framed)"]);
    const marks = new Set(lanes.lanes.markers.map((m) => m[2]));
    const words = [marks.has("error") && "× error", marks.has("exit") && "❙ end of the process", marks.has("handled") && "○ handled exception", data.end.includes(ENDED_ABOUT) && "paler: time of completion is not recorded"].filter(Boolean);
    fill("legend", entries.map(([paint, text]) => make("span", null, swatch(paint), text)), words.map((text) => make("span", null, text)));
  }
}

async function showLanes(view) {
  const { lanes } = view;
  if (!lanes.calls && !lanes.markers.length) return;
  const drawn = new Lanes(view, await unpack(lanes.packed));
  byId("lanes").hidden = false;
  byId("save-trace").addEventListener("click", () => saveTrace(lanes, drawn.data));
  drawn.resize();
  const input = new LanesInput(drawn);
  input.makeLegend();
  const count = drawn.data.ranks.length;
  drawn.canvas.setAttribute("aria-label", `Time lanes of ${count} ranks. ${view.headline}`);
  const notes = [];
  if (count > 90) notes.push(`${count.toLocaleString("en")} ranks: each line of the large block stands for several, and the worst state among them shows.`);
  if (lanes.leftOut > 0) notes.push(`The last ${lanes.most} calls of each rank are shown; ${lanes.leftOut.toLocaleString("en")} earlier ones are not.`);
  byId("lanes-note").textContent = notes.join(" ");
  new ResizeObserver(() => { if (drawn.canvas.parentElement.clientWidth !== drawn.width) drawn.resize(); }).observe(byId("stage"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawn.draw(); input.makeLegend(); });
}
