// How it ran: a small chart for each thing that was sampled, a line for each rank, seconds from the start.

const CHART = { width: 340, height: 96, left: 6, right: 6, top: 8, bottom: 18 };
const LINE_COLORS = ["--all_reduce", "--all_gather", "--reduce_scatter", "--broadcast", "--p2p", "--away", "--barrier", "--bad"];

/** 0.5, 12, 1,300: as few digits as tell. */
const amount = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 });

function chart(panel, at) {
  const { width, height, left, right, top, bottom } = CHART;
  const end = at[at.length - 1] || 1;
  const most = panel.most || 1;
  const x = (second) => left + (second / end) * (width - left - right);
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const base = svg("line", { x1: left, x2: width - right, y1: y(0), y2: y(0), class: "base" });
  const lines = panel.lines.map(([name, values], i) => {
    let path = "";
    values.forEach((value, k) => {
      if (value !== null) path += `${path && values[k - 1] !== null ? "L" : "M"}${x(at[k]).toFixed(1)},${y(value).toFixed(1)}`;
    });
    const known = values.filter((value) => value !== null);
    const line = svg("path", { d: path, class: "course", stroke: `var(${LINE_COLORS[i % LINE_COLORS.length]})` }, svg("title", null, name));
    return known.length ? line : null;
  });
  const from = svg("text", { x: left, y: height - 4, class: "tick" }, "0 s");
  const to = svg("text", { x: width - right, y: height - 4, class: "tick", "text-anchor": "end" }, `${amount(end)} s`);
  const names = panel.lines.length > 1 ? `, ${panel.lines.length} lines: ${panel.lines.map(([name]) => name).slice(0, 4).join(", ")}` : "";
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${panel.title}: at most ${amount(most)}${names}` },
    base, ...lines, from, to);
  return make("figure", { className: "chart" },
    make("figcaption", null, panel.title, make("b", null, `most ${amount(most)}`)), drawing);
}

function showCourse(course) {
  if (!course.panels) return;
  byId("course").hidden = false;
  fill("charts", course.panels.map((panel) => chart(panel, course.at)));
}
