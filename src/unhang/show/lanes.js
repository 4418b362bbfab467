// Rank x time. Calls come packed (see web_page.py); nothing is kept per call but numbers in typed arrays.

const FAMILIES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "p2p", "other"];
const [ENDED, ENDED_ABOUT, WAITING, FAILED] = [0, 1, 2, 3];
const PINNED = 6;
const PEERS = 2;
const POOL_HEIGHT = 420;

function familyOf(op) {
  const name = op.toLowerCase();
  if (/send|recv|p2p/.test(name)) return 5;
  if (/reduce_?scatter/.test(name)) return 2;
  if (/all_?reduce/.test(name)) return 0;
  if (/gather|scatter|alltoall|all_to_all/.test(name)) return 1;
  if (/broadcast/.test(name)) return 3;
  if (/barrier|new_group|store|init|destroy/.test(name)) return 4;
  return 6;
}

/** Undoes `_pack`: inflates, puts the bytes of each number together again, sums up differences. */
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const flat = new Uint8Array(await new Response(stream).arrayBuffer());
  const columns = {};
  let at = 0;
  for (const [name, count, isDelta] of packed.columns) {
    const values = new Uint32Array(count);
    let sum = 0;
    for (let i = 0; i < count; i++) {
      const value = (flat[at + i] | (flat[at + count + i] << 8) | (flat[at + 2 * count + i] << 16) | (flat[at + 3 * count + i] << 24)) >>> 0;
      sum = isDelta ? (sum + value) >>> 0 : value;
      values[i] = sum;
    }
    columns[name] = values;
    at += 4 * count;
  }
  return columns;
}

function timeText(seconds, precision = 0.1) {
  if (precision < 0.001) return `${(seconds * 1000).toFixed(2)} ms`;
  if (precision < 1) return `${seconds.toFixed(precision < 0.01 ? 3 : precision < 0.1 ? 2 : 1)} s`;
  const s = Math.round(seconds);
  if (s < 120) return `${s} s`;
  return s < 7200 ? `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim() : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

const spanText = (seconds) => timeText(seconds, seconds < 0.1 ? 0.0001 : seconds < 1 ? 0.005 : 0.1);

function hatch(context, ground, stroke) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const c = tile.getContext("2d");
  c.fillStyle = ground;
  c.fillRect(0, 0, 8, 8);
  c.strokeStyle = stroke;
  c.lineWidth = 1.6;
  for (const x of [-8, 0, 8]) {
    c.beginPath();
    c.moveTo(x - 1, 9);
    c.lineTo(x + 9, -1);
    c.stroke();
  }
  return context.createPattern(tile, "repeat");
}

class Lanes {
  constructor(view, data) {
    Object.assign(this, { view, lanes: view.lanes, data, canvas: byId("canvas") });
    this.context = this.canvas.getContext("2d");
    this.indexOf = new Map(Array.from(data.ranks, (rank, i) => [rank, i]));
    this.culprits = view.culprits.filter((rank) => this.indexOf.has(rank));
    this.accused = new Set(this.culprits.map((rank) => this.indexOf.get(rank)));
    this.groups = [...new Set(this.lanes.kinds.map((kind) => kind[1]))];
    this.byGroup = false;
    this.classes = { op: this.lanes.kinds.map((k) => familyOf(k[0])), group: this.lanes.kinds.map((k) => this.groups.indexOf(k[1]) % FAMILIES.length) };
    this.away = this.findAway();
    this.range = [...this.lanes.focus];
    this.selected = null;
  }

  /** Where a culprit waits in no call: from the end of its last call on, it is somewhere else. */
  findAway() {
    const { start, length, end, offsets } = this.data;
    const away = new Map();
    for (const i of this.accused) {
      let last = 0;
      let waits = false;
      for (let n = offsets[i]; n < offsets[i + 1]; n++) {
        last = Math.max(last, start[n] + length[n]);
        waits ||= end[n] === WAITING;
      }
      const stop = this.lanes.markers.filter((m) => m[0] === this.data.ranks[i] && m[2] !== "handled").map((m) => m[1]);
      if (!waits) away.set(i, [last, Math.min(this.lanes.end, ...stop)]);
    }
    return away;
  }

  /** The ranks that have waited longest beside the culprits: what the culprits should have been doing. */
  firstToWait() {
    const { start, end, offsets, ranks } = this.data;
    const first = Array.from(ranks, (_, i) => end.indexOf(WAITING, offsets[i])).map((n, i) => (n >= 0 && n < offsets[i + 1] ? start[n] : Infinity));
    return [...first.keys()].filter((i) => first[i] < Infinity && !this.accused.has(i)).sort((a, b) => first[a] - first[b] || a - b).slice(0, PEERS);
  }

  /** Rows from top to bottom: one per rank, or pinned culprits and peers and then bands of ranks. */
  layout() {
    const count = this.data.ranks.length;
    const row = (from, to, y, h) => ({ from, to, y, h });
    const rows = [];
    if (count <= 90) {
      const h = Math.max(7, Math.min(26, Math.floor(560 / Math.max(count, 1))));
      for (let i = 0; i < count; i++) rows.push(row(i, i + 1, 26 + i * (h + (h > 12 ? 4 : 1)), h));
    } else {
      const pinned = [...this.culprits.slice(0, PINNED).map((rank) => this.indexOf.get(rank)), ...this.firstToWait()];
      pinned.forEach((i, n) => rows.push(row(i, i + 1, 26 + n * 26, 22)));
      const top = 26 + pinned.length * 26 + (pinned.length ? 12 : 0);
      const bands = Math.min(count, Math.floor(POOL_HEIGHT / 2));
      for (let b = 0; b < bands; b++) {
        const y = top + Math.floor((b * POOL_HEIGHT) / bands);
        rows.push({ ...row(Math.floor((b * count) / bands), Math.floor(((b + 1) * count) / bands), y, top + Math.floor(((b + 1) * POOL_HEIGHT) / bands) - y), pooled: true });
      }
    }
    return rows;
  }

  resize() {
    this.rows = this.layout();
    this.width = this.canvas.parentElement.clientWidth;
    const last = this.rows[this.rows.length - 1];
    this.height = last.y + last.h + 10;
    this.left = this.labelWidth();
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.height = `${this.height}px`;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.draw();
  }

  /** Room for the widest name of a rank. */
  labelWidth() {
    this.context.font = `650 12.5px ${getComputedStyle(document.body).fontFamily}`;
    return Math.ceil(this.context.measureText(`rank ${this.data.ranks[this.data.ranks.length - 1]}`).width) + 26;
  }

  readColors() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    this.colors = { families: FAMILIES.map(color), mono: color("mono"), sans: color("sans") };
    for (const name of ["ink", "soft", "faint", "line", "lane", "card", "wait", "wait-ground", "away", "away-ink", "accent", "bad"]) this.colors[name] = color(name);
    this.hatched = hatch(this.context, this.colors["wait-ground"], this.colors.wait);
  }

  get plot() { return this.width - this.left - 14; }
  x(time) { return this.left + ((time - this.range[0]) / (this.range[1] - this.range[0])) * this.plot; }
  time(x) { return this.range[0] + ((x - this.left) / this.plot) * (this.range[1] - this.range[0]); }
  seconds(units) { return (units * this.lanes.unit) / 1e9; }

  /** Calls of a rank that may touch the visible range: [first, last). Waiting ones at the front are kept. */
  visible(i) {
    const { start, offsets } = this.data;
    let [low, high] = [offsets[i], offsets[i + 1]];
    const begin = low;
    const stop = high;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] <= this.range[1]) low = middle + 1;
      else high = middle;
    }
    return [begin, Math.min(low, stop)];
  }

  draw() {
    const c = this.context;
    this.readColors();
    c.clearRect(0, 0, this.width, this.height);
    this.drawAxis();
    this.drawLabels();
    c.save();
    c.beginPath();
    c.rect(this.left, 0, this.plot, this.height);
    c.clip();
    for (const row of this.rows) if (!row.pooled) this.drawRow(row);
    this.drawPool(this.rows.filter((row) => row.pooled));
    this.drawMarkers();
    this.drawOnset();
    if (this.drag) {
      c.fillStyle = this.colors.accent;
      c.globalAlpha = 0.16;
      c.fillRect(Math.min(this.drag.from, this.drag.to), 22, Math.abs(this.drag.to - this.drag.from), this.height);
      c.globalAlpha = 1;
    }
    c.restore();
  }

  drawAxis() {
    const c = this.context;
    const span = this.seconds(this.range[1] - this.range[0]);
    const raw = span / Math.max(2, this.plot / 120);
    const scale = 10 ** Math.floor(Math.log10(raw));
    const step = raw < 20 ? [1, 2, 5, 10].map((n) => n * scale).find((n) => n >= raw) : [30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].find((n) => n >= raw) || 86400 * Math.ceil(raw / 86400);
    c.font = `12px ${this.colors.sans}`;
    c.textAlign = "center";
    for (let n = Math.ceil(this.seconds(this.range[0]) / step); n * step <= this.seconds(this.range[1]); n++) {
      const x = Math.round(this.x((n * step * 1e9) / this.lanes.unit)) + 0.5;
      c.fillStyle = this.colors.line;
      c.fillRect(x, 20, 1, this.height - 28);
      c.fillStyle = this.colors.soft;
      const toOnset = this.lanes.onset === null ? 99 : x - this.x(this.lanes.onset);
      if (x > this.left + 18 && x < this.width - 26 && (toOnset < -26 || toOnset > 88)) c.fillText(timeText(n * step, step), x, 14);
    }
  }

  drawLabels() {
    const c = this.context;
    c.textAlign = "right";
    let free = -99;
    for (const row of this.rows) {
      const isCulprit = !row.pooled && this.accused.has(row.from);
      const middle = row.y + row.h / 2 + 4;
      if (row.pooled ? row.y - free < 52 : middle - free < 12 && !isCulprit) continue;
      free = row.pooled ? row.y : middle;
      c.font = `${isCulprit ? 650 : 400} 12.5px ${this.colors.sans}`;
      c.fillStyle = isCulprit ? this.colors.ink : this.colors.soft;
      const rank = this.data.ranks[row.from];
      c.fillText(`rank ${rank}`, this.left - 12, row.pooled ? row.y + 10 : middle);
    }
    for (const row of this.rows.filter((r) => r.pooled)) {
      if (![...this.accused].some((i) => i >= row.from && i < row.to)) continue;
      c.fillStyle = this.colors.away;
      c.beginPath();
      c.moveTo(this.left - 9, row.y - 3.5);
      c.lineTo(this.left - 2, row.y + row.h / 2);
      c.lineTo(this.left - 9, row.y + row.h + 3.5);
      c.fill();
    }
  }

  drawRow(row) {
    const c = this.context;
    const { start, length, end, kind } = this.data;
    const i = row.from;
    c.fillStyle = this.colors.lane;
    c.fillRect(this.left, row.y, this.plot, row.h);
    const [first, stop] = this.visible(i);
    const classes = this.byGroup ? this.classes.group : this.classes.op;
    let waiting = -1;
    for (const late of [false, true]) {
      for (let n = first; n < stop; n++) {
        if ((end[n] >= WAITING) !== late || start[n] + length[n] < this.range[0]) continue;
        const x0 = Math.max(this.left - 4, this.x(start[n]));
        const w = Math.max(1.5, Math.min(this.width + 4, this.x(start[n] + length[n])) - x0 - (row.h > 12 ? 0.6 : 0));
        c.fillStyle = end[n] === WAITING ? this.hatched : end[n] === FAILED ? this.colors.bad : this.colors.families[classes[kind[n]]];
        c.globalAlpha = end[n] === ENDED_ABOUT ? 0.62 : 1;
        c.fillRect(x0, row.y, w, row.h);
        c.globalAlpha = 1;
        if (end[n] === WAITING) {
          c.fillStyle = this.colors.wait;
          c.fillRect(x0, row.y, 2.5, row.h);
          if (waiting < 0) waiting = n;
        }
      }
    }
    if (waiting >= 0) this.drawWaitLabel(row, waiting);
    this.drawAway(row, i);
    if (this.accused.has(i) && row.h > 10) {
      c.strokeStyle = this.colors.away;
      c.lineWidth = 2;
      c.strokeRect(this.left + 1, row.y - 1, this.plot - 2, row.h + 2);
    }
    if (this.selected && this.selected.row === row) this.drawSelected(row);
  }

  /** Says in a waiting bar what is waited in, where there is room. */
  drawWaitLabel(row, n) {
    const c = this.context;
    const x0 = Math.max(this.left, this.x(this.data.start[n])) + 9;
    const x1 = Math.min(this.left + this.plot, this.x(this.data.start[n] + this.data.length[n]));
    c.font = `560 12.5px ${this.colors.sans}`;
    const text = `${this.lanes.kinds[this.data.kind[n]][0]} #${this.data.seq[n]}`;
    const w = c.measureText(text).width + 14;
    if (row.h < 18 || x1 - x0 < w + 4) return;
    c.fillStyle = this.colors.card;
    c.beginPath();
    c.roundRect(x0, row.y + (row.h - 18) / 2, w, 18, 4);
    c.fill();
    c.fillStyle = this.colors.ink;
    c.textAlign = "left";
    c.fillText(text, x0 + 7, row.y + row.h / 2 + 4.5);
  }

  drawAway(row, i) {
    const span = this.away.get(i);
    if (!span) return;
    const c = this.context;
    const x0 = Math.max(this.left, this.x(span[0]));
    const x1 = Math.min(this.left + this.plot, this.x(span[1]));
    c.fillStyle = this.colors.away;
    c.fillRect(x0, row.y, Math.max(2, x1 - x0), row.h);
    const text = this.lanes.wheres[this.data.places[i]] || "not in a call";
    c.font = `600 12.5px ${this.colors.sans}`;
    if (row.h < 15 || x1 - x0 < 80) return;
    c.save();
    c.beginPath();
    c.rect(x0, row.y, x1 - x0 - 6, row.h);
    c.clip();
    c.fillStyle = this.colors["away-ink"];
    c.textAlign = "left";
    c.fillText(text, x0 + 9, row.y + row.h / 2 + 4.5);
    c.restore();
  }

  drawSelected(row) {
    const c = this.context;
    const { start, length } = this.data;
    const n = this.selected.call;
    if (n < 0) return;
    c.strokeStyle = this.colors.ink;
    c.lineWidth = 2;
    c.strokeRect(this.x(start[n]) - 1, row.y - 1, Math.max(3, this.x(start[n] + length[n]) - this.x(start[n])) + 2, row.h + 2);
  }

  /** Bands of several ranks: in every pixel the worst state wins, so that one bad cell among thousands is seen. */
  drawPool(rows) {
    const { start, length, end, kind } = this.data;
    const width = Math.max(1, Math.ceil(this.plot));
    const cells = new Uint8Array(width);
    const classes = this.byGroup ? this.classes.group : this.classes.op;
    const paint = (from, to, value) => {
      const stop = Math.min(width - 1, Math.floor(this.x(to) - this.left));
      for (let x = Math.max(0, Math.floor(this.x(from) - this.left)); x <= stop; x++) if (cells[x] < value) cells[x] = value;
    };
    for (const row of rows) {
      cells.fill(0);
      for (let i = row.from; i < row.to; i++) {
        const [first, stop] = this.visible(i);
        for (let n = first; n < stop; n++) {
          if (start[n] + length[n] < this.range[0]) continue;
          paint(start[n], start[n] + length[n], end[n] === WAITING ? 8 : end[n] === FAILED ? 9 : 1 + classes[kind[n]]);
        }
        if (this.away.has(i)) paint(...this.away.get(i), 10);
      }
      this.drawCells(row, cells);
    }
  }

  drawCells(row, cells) {
    const c = this.context;
    const paints = [this.colors.lane, ...this.colors.families, this.hatched, this.colors.bad, this.colors.away];
    for (let from = 0; from < cells.length;) {
      let to = from + 1;
      while (to < cells.length && cells[to] === cells[from]) to++;
      c.fillStyle = paints[cells[from]];
      const isAway = cells[from] === 10;
      c.fillRect(this.left + from, row.y - (isAway ? 0.5 : 0), to - from, row.h + (isAway ? 1 : 0));
      from = to;
    }
  }

  drawMarkers() {
    const c = this.context;
    for (const [rank, at, kind] of this.lanes.markers) {
      const row = this.rows.find((r) => this.indexOf.get(rank) >= r.from && this.indexOf.get(rank) < r.to);
      const x = this.x(at);
      if (!row || x < this.left - 6 || x > this.width) continue;
      const [y, r] = [row.y + row.h / 2, row.pooled ? 3 : Math.min(7, row.h / 2)];
      c.lineWidth = 2.4;
      c.strokeStyle = c.fillStyle = kind === "error" ? this.colors.bad : this.colors.ink;
      c.beginPath();
      if (kind === "error") {
        c.fillStyle = this.colors.card;
        c.arc(x, y, r + 3, 0, 7);
        c.fill();
        c.beginPath();
        for (const d of [-1, 1]) { c.moveTo(x - r, y - d * r); c.lineTo(x + r, y + d * r); }
        c.stroke();
      } else if (kind === "exit") c.fillRect(x - 1.5, row.y - 1, 3, row.h + 2);
      else { c.arc(x, y, r * 0.6, 0, 7); c.stroke(); }
    }
  }

  drawOnset() {
    if (this.lanes.onset === null) return;
    const c = this.context;
    const x = Math.round(this.x(this.lanes.onset)) + 0.5;
    c.setLineDash([4, 3]);
    c.strokeStyle = this.colors.bad;
    c.lineWidth = 1.4;
    c.beginPath();
    c.moveTo(x, 18);
    c.lineTo(x, this.height - 6);
    c.stroke();
    c.setLineDash([]);
    c.font = `620 12px ${this.colors.sans}`;
    const text = this.lanes.onsetName;
    const isRight = x > this.width - 90;
    const w = c.measureText(text).width;
    c.fillStyle = this.colors.card;
    c.fillRect(isRight ? x - w - 10 : x, 2, w + 10, 16);
    c.fillStyle = this.colors.bad;
    c.textAlign = isRight ? "right" : "left";
    c.fillText(text, x + (isRight ? -5 : 5), 14);
  }
}
