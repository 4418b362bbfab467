// Who waits for whom: boxes in layers, the root on the right (below, on a narrow page).

const NODE_WIDTH = 300;
const LINE_HEIGHT = 19;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, String(value));
  element.append(...children.filter(Boolean));
  return element;
}

const ruler = document.createElement("canvas").getContext("2d");

/** The text, cut where it would leave `width` pixels. */
function fit(text, width, font) {
  ruler.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
  let most = text.length;
  while (most > 1 && ruler.measureText(text.slice(0, most)).width > width) most--;
  return most < text.length ? `${text.slice(0, most - 1)}…` : text;
}

const nodeLines = (node) => [...node.lines, ...(node.where ? [node.where] : [])];
const nodeHeight = (node) => 40 + nodeLines(node).length * LINE_HEIGHT;

/** Places boxes; gives each {x, y, w, h} and the size of the whole. */
function placeNodes(nodes, isNarrow) {
  const layers = Math.max(...nodes.map((node) => node.layer)) + 1;
  const columns = Array.from({ length: layers }, (_, i) => nodes.filter((node) => node.layer === layers - 1 - i).sort((a, b) => a.slot - b.slot));
  const width = (box) => Math.max(...box.map((b) => b.x + b.w));
  let y = 22;
  const boxes = new Map();
  if (isNarrow) {
    for (const node of columns.flat()) {
      boxes.set(node, { x: 4, y, w: NODE_WIDTH, h: nodeHeight(node) });
      y += nodeHeight(node) + 44;
    }
  } else {
    const heights = columns.map((column) => column.reduce((sum, node) => sum + nodeHeight(node) + 26, -26));
    const tallest = Math.max(...heights);
    columns.forEach((column, i) => {
      y = 22 + (tallest - heights[i]) / 2;
      for (const node of column) {
        boxes.set(node, { x: 4 + i * (NODE_WIDTH + 110), y, w: NODE_WIDTH, h: nodeHeight(node) });
        y += nodeHeight(node) + 26;
      }
    });
  }
  const all = [...boxes.values()];
  return { boxes, width: width(all) + 60, height: Math.max(...all.map((b) => b.y + b.h)) + (layers > 2 && !isNarrow ? 40 : 22) };
}

/** The line from a waiter to what it waits for; `bend` keeps lines between the same boxes apart. */
function arrowPath(a, b, isNarrow, bend) {
  if (a === b) {
    const x = a.x + a.w - 70;
    return `M${x},${a.y} C${x},${a.y - 24} ${x + 36},${a.y - 24} ${x + 36},${a.y - 3}`;
  }
  if (isNarrow && b.y - a.y > 0 && b.y - a.y - a.h < 60) {
    const x = a.x + a.w / 2 + bend;
    return `M${x},${a.y + a.h} L${x},${b.y - 3}`;
  }
  if (isNarrow || Math.abs(a.x - b.x) < 5) {
    const out = a.x + a.w + 40 + bend;
    return `M${a.x + a.w},${a.y + a.h / 2 + bend} C${out},${a.y + a.h / 2} ${out},${b.y + b.h / 2} ${b.x + b.w + 3},${b.y + b.h / 2 - bend}`;
  }
  if (b.x > a.x) {
    const [x0, x1, y0, y1] = [a.x + a.w, b.x - 3, a.y + a.h / 2 - 10, b.y + b.h / 2 - 10];
    return `M${x0},${y0} C${x0 + 55},${y0} ${x1 - 55},${y1} ${x1},${y1}`;
  }
  const near = a.x - b.x - b.w < 140;
  const [x0, x1, y0, y1] = [a.x, b.x + b.w + 3, a.y + a.h / 2 + 12, b.y + b.h / 2 + 12];
  if (near) return `M${x0},${y0} C${x0 - 55},${y0} ${x1 + 55},${y1} ${x1},${y1}`;
  const low = Math.max(a.y + a.h, b.y + b.h) + 34;
  return `M${a.x + a.w / 2},${a.y + a.h} C${a.x + a.w / 2},${low} ${b.x + b.w / 2},${low} ${b.x + b.w / 2},${b.y + b.h + 3}`;
}

function nodeBox(node, box) {
  const kind = ["node", node.root && "root", node.cycle && "cycle", node.culprit && "culprit"].filter(Boolean).join(" ");
  const tag = node.culprit ? "CULPRIT" : node.root ? "ROOT" : "";
  const texts = nodeLines(node).map((line, i) => {
    const text = svg("text", { x: box.x + 14, y: box.y + 45 + i * LINE_HEIGHT, class: i < node.lines.length ? "" : "soft" });
    text.textContent = fit(line, box.w - 26, "13px");
    return text;
  });
  const name = svg("text", { x: box.x + 14, y: box.y + 24, class: "name" });
  name.textContent = fit(node.title, box.w - (tag ? 90 : 26), "650 14.5px");
  const mark = svg("text", { x: box.x + box.w - 12, y: box.y + 23, class: "tag" });
  mark.textContent = tag;
  const full = svg("title");
  full.textContent = [node.title, ...node.targets, node.where].filter(Boolean).join("\n");
  return svg("g", { class: kind }, full, svg("rect", { class: "box", x: box.x, y: box.y, width: box.w, height: box.h, rx: 8 }), name, mark, ...texts);
}

function arrowHead(id, kind) {
  return svg("marker", { id, viewBox: "0 0 10 10", refX: 8, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto" },
    svg("path", { d: "M0,0 L10,5 L0,10 z", class: `head ${kind}` }));
}

/** Whether the layers stand below each other: on a narrow page, and for long chains. */
function isUpright(graph) {
  return byId("graph").clientWidth < 620 || Math.max(...graph.nodes.map((node) => node.layer)) > 2;
}

function drawGraph(graph) {
  const { nodes, arrows } = graph;
  const isNarrow = isUpright(graph);
  const { boxes, width, height } = placeNodes(nodes, isNarrow);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" }, svg("defs", null, arrowHead("head", ""), arrowHead("head-cycle", "cycle")));
  root.setAttribute("aria-label", nodes.flatMap((node) => [`${node.title}: ${node.targets.join("; ") || node.lines.join("; ")}`]).join(". "));
  const drawn = new Set();
  for (const [from, to, which] of arrows) {
    if (drawn.has(`${from} ${to}`)) continue;
    drawn.add(`${from} ${to}`);
    const inCycle = nodes[from].cycle && nodes[to].cycle;
    const bend = drawn.has(`${to} ${from}`) ? 14 : 0;
    const path = svg("path", {
      class: inCycle ? "arrow cycle" : "arrow",
      d: arrowPath(boxes.get(nodes[from]), boxes.get(nodes[to]), isNarrow, bend),
      "marker-end": inCycle ? "url(#head-cycle)" : "url(#head)",
    });
    const about = svg("title");
    about.textContent = nodes[from].targets[which] || "";
    path.append(about);
    root.append(path);
  }
  for (const node of nodes) root.append(nodeBox(node, boxes.get(node)));
  fill("graph", root);
}

function showGraph(graph) {
  if (!graph.nodes.length) return hide("waits");
  const notes = graph.cycles.map((who) => `A cycle: ${who} wait for each other; it can never end.`);
  byId("graph-note").textContent = [...notes, graph.more].filter(Boolean).join(" ");
  let wasNarrow = null;
  const redraw = () => {
    const isNarrow = isUpright(graph);
    if (isNarrow !== wasNarrow) drawGraph(graph);
    wasNarrow = isNarrow;
  };
  new ResizeObserver(redraw).observe(byId("graph"));
  return redraw();
}
