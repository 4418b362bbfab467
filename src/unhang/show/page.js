"use strict";
// What the scripts share, and the stacks. Foreign text is only ever written through text nodes.

const byId = (id) => document.getElementById(id);

/** An element with properties and children; strings become text nodes. */
function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An element of a drawing. */
function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, String(value));
  element.append(...children.filter(Boolean));
  return element;
}

/** Puts children in the place of what an element holds. */
function fill(id, ...children) {
  byId(id).replaceChildren(...children.flat());
}

/** Copies text; a page opened from a file may have no clipboard object. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Makes the buttons work that copy what they carry; without scripts they stay hidden. */
function showCopyButtons() {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const label = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await copyText(button.dataset.copy);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = label; }, 1500);
    });
  }
}

function fold(title, count, content, open = false) {
  const label = make("summary", null, title, count === "" ? null : make("span", { className: "count" }, String(count)));
  return make("details", { open }, label, make("div", null, content));
}

// ---- stacks --------------------------------------------------------------------------------------------------

function frameItem(frame) {
  const content = [make("span", { className: "fn" }, `${frame.function}()`), "  ", make("span", { className: "at" }, frame.place)];
  if (frame.text) content.push(make("span", { className: "text" }, frame.text));
  return make("li", { className: frame.kind }, content);
}

function stackCard(stack, isCulprit) {
  if (!stack) return null;
  return make("div", { className: isCulprit ? "card stack culprit" : "card stack" },
    make("p", { className: "eyebrow" }, isCulprit ? "The culprit" : "Its peers"),
    make("h3", null, stack.title),
    make("ol", { className: "frames" }, stack.frames.map(frameItem)));
}

function treeRow(line) {
  const name = `${line.function}() `;
  const what = make("div", { className: `what d${Math.min(line.depth, 5)}` },
    make("span", { className: line.user ? "" : "lib" }, name), make("span", { className: "at" }, line.place));
  const count = line.count > 1 ? ` (${line.count})` : "";
  const ranks = make("div", { className: "ranks" }, line.shown ? `${line.ranks}${count}` : "");
  return make("div", { className: line.culprit ? "row culprit" : "row" }, ranks, what);
}

function showStacks(stacks) {
  fill("pair", [stackCard(stacks.left, true), stackCard(stacks.right, false)].filter(Boolean));
  const lines = stacks.tree.lines;
  lines.forEach((line, i) => { line.shown = i === 0 || lines[i - 1].ranks !== line.ranks || lines[i - 1].depth > line.depth; });
  if (!lines.length && !stacks.left && !stacks.right) return undefined;
  byId("where").hidden = false;
  if (!lines.length) return undefined;
  const content = [make("div", { className: "tree" }, lines.map(treeRow))];
  if (stacks.tree.more) content.push(make("p", { className: "small" }, `${stacks.tree.more} more lines are not shown.`));
  if (stacks.tree.without) content.push(make("p", { className: "small" }, `No stack of ${stacks.tree.without}.`));
  fill("tree", fold("The stacks of all ranks in one", "outermost call first; the ranks that are in it on the left", content, !stacks.left));
  return undefined;
}
