"use strict";
// Sections of the page. Foreign text is only ever written through text nodes.

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

/** Fills an element, or hides its section where there is nothing to show. */
function fill(id, ...children) {
  byId(id).replaceChildren(...children.flat());
}

function hide(id) {
  byId(id).hidden = true;
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

function copyButton(text, what) {
  const button = make("button", { type: "button" }, "Copy");
  button.setAttribute("aria-label", `Copy the ${what}`);
  button.addEventListener("click", async () => {
    await copyText(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

function table(head, rows, classes = []) {
  const cell = (text, column) => {
    const own = typeof classes[column] === "function" ? classes[column](text) : classes[column] || "";
    return make("td", { className: own }, text);
  };
  const body = make("tbody", null, rows.map((row) => make("tr", null, row.map(cell))));
  const top = head.length ? make("thead", null, make("tr", null, head.map((h) => make("th", { scope: "col" }, h)))) : null;
  return make("table", null, top, body);
}

function fold(title, count, content, open = false) {
  const label = make("summary", null, title, count === "" ? null : make("span", { className: "count" }, String(count)));
  return make("details", { open }, label, make("div", null, content));
}

// ---- 1 the answer ----------------------------------------------------------------------------------------------

function codeLines(lines) {
  return make("div", { className: "scroll", tabIndex: 0 }, lines.map(([number, text, isIt]) =>
    make("div", { className: isIt ? "row it" : "row" }, make("i", null, String(number)), text || " ")));
}

function showPlace(place) {
  if (!place) return;
  const file = make("div", { className: "file" }, make("b", null, `${place.file}:${place.line}`), ` in ${place.function}()`);
  const box = make("div", { className: "code" }, file);
  if (place.lines.length) box.append(codeLines(place.lines));
  fill("place", box);
}

function showSummary(view) {
  const cards = [];
  const todo = view.steps.length ? view.steps : view.fixes;
  if (todo.length) {
    const items = todo.map((fix, i) => make("li", null, make("a", { href: `#fix-${i + 1}` }, fix.title)));
    cards.push(make("div", { className: "card" }, make("p", { className: "eyebrow" }, "What to do"), make("ol", null, items)));
  }
  fill("summary", cards);
  byId("summary").parentElement.classList.toggle("two", cards.length > 0);
}

function showAnswer(view) {
  const fact = Object.fromEntries(view.facts);
  byId("command").textContent = fact["Command"] || "";
  byId("when").textContent = fact["Started"] || "";
  byId("badge").textContent = view.outcome;
  byId("badge").classList.add(view.outcome);
  byId("headline").textContent = view.headline;
  byId("because").textContent = view.because;
  byId("because").hidden = !view.because;
  fill("chips", view.chips.map(([kind, label, value]) =>
    make("span", { className: `chip ${kind}` }, make("b", null, label), value)));
  showPlace(view.place);
  showSummary(view);
  byId("because").closest(".columns").classList.toggle("none", !view.because && !view.place && !view.fixes.length);
}

// ---- 4 stacks --------------------------------------------------------------------------------------------------

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
  if (!lines.length && !stacks.left && !stacks.right) return hide("where");
  if (!lines.length) return undefined;
  const content = [make("div", { className: "tree" }, lines.map(treeRow))];
  if (stacks.tree.more) content.push(make("p", { className: "small" }, `${stacks.tree.more} more lines are not shown.`));
  if (stacks.tree.without) content.push(make("p", { className: "small" }, `No stack of ${stacks.tree.without}.`));
  fill("tree", fold("The stacks of all ranks in one", "outermost call first; the ranks that are in it on the left", content, !stacks.left));
  return undefined;
}

// ---- 5 fixes ---------------------------------------------------------------------------------------------------

function changeBlock(label, text) {
  const kind = (line) => (label !== "Patch" ? "" : line.startsWith("+") ? " add" : line.startsWith("-") ? " drop" : "");
  const rows = text.replace(/\n$/, "").split("\n").map((line) => make("div", { className: `row${kind(line)}` }, line || " "));
  return make("div", { className: "labelled" },
    make("div", { className: "head" }, make("p", { className: "eyebrow" }, label), copyButton(text, label.toLowerCase())),
    make("div", { className: "code change" }, make("div", { className: "scroll", tabIndex: 0 }, rows)));
}

function proseBlock(label, text) {
  return make("div", { className: "labelled" }, make("p", { className: "eyebrow" }, label), make("p", null, text));
}

function fixCard(fix, index) {
  const body = make("div", null, make("h3", null, fix.title));
  for (const [label, text] of [["Setting", fix.setting], ["Command", fix.command], ["Patch", fix.patch]]) {
    if (text) body.append(changeBlock(label, text));
  }
  if (fix.verify) body.append(proseBlock("How to see that it helped", fix.verify));
  if (fix.undo) body.append(proseBlock("How to take it back", fix.undo));
  return make("article", { className: "card fix", id: `fix-${index + 1}` }, make("div", { className: "number" }, String(index + 1)), body);
}

function uselessCard(useless) {
  const items = useless.map((one) => make("li", null, make("strong", null, one.title), `: ${one.why}`));
  return make("article", { className: "card useless" }, make("h3", null, "What does not help"), make("ul", null, items));
}

function stepCard(step, index) {
  const body = make("div", null, make("h3", null, step.title), make("p", { className: "small" }, step.cost), changeBlock("Command", step.do),
    table(["What is seen", "What it means"], step.outcomes), proseBlock("How to take it back", step.undo));
  return make("article", { className: "card fix", id: `fix-${index + 1}` }, make("div", { className: "number" }, String(index + 1)), body);
}

function showFixes(fixes, useless, steps) {
  if (!fixes.length && !useless.length && !steps.length) return hide("fix");
  const cards = steps.length ? steps.map(stepCard) : fixes.map(fixCard);
  return fill("fixes", [...cards, ...(useless.length ? [uselessCard(useless)] : [])]);
}

// ---- 6, 7 the rest ---------------------------------------------------------------------------------------------

function otherFinding(finding) {
  const about = [finding.certainty, finding.ranks, finding.after && `follows from ${finding.after}`];
  return make("div", { className: "other" }, make("b", null, finding.title),
    make("p", { className: "small" }, about.filter(Boolean).join(" · ")), make("p", null, finding.because));
}

function showWithoutFinding(view) {
  if (view.lastCalls.length) {
    fill("last-calls", make("div", { className: "card" }, table(["Ranks", "Last recorded call", "State"], view.lastCalls)));
  } else hide("shown");
  if (view.undecided.length && (view.outcome !== "clean" || view.isCheck)) {
    fill("undecided", make("div", { className: "card" }, table(["Missing", "Rules that could not judge without it"], view.undecided)));
  } else hide("decide");
}

function showFolds(view) {
  const folds = [];
  const echoes = view.others.filter((finding) => finding.after);
  const beside = view.others.filter((finding) => !finding.after);
  if (view.evidence.length) folds.push(fold("Evidence", view.evidence.length, table([], view.evidence), true));
  if (beside.length) folds.push(fold("Also found", beside.length, beside.map(otherFinding), true));
  if (echoes.length) folds.push(fold("Seen as a consequence", echoes.length, echoes.map(otherFinding)));
  if (view.notes.length) folds.push(fold("Notes", view.notes.length, make("ul", { className: "plain" }, view.notes.map((n) => make("li", null, n)))));
  if (view.facts.length) folds.push(fold("The job", "", table([], view.facts, ["", "mono"]), true));
  if (view.absent.length) folds.push(fold("Evidence that is missing", view.absent.length, table([], view.absent), !view.chips.length));
  if (view.present.length) folds.push(fold("Evidence that was there", view.present.length, make("ul", { className: "plain" }, view.present.map((p) => make("li", null, p)))));
  if (view.outcomes.length) {
    folds.push(fold("What every rule said", view.outcomes.length, table(["Rule", "Verdict", "Why"], view.outcomes, ["", (verdict) => verdict, ""])));
  }
  fill("folds", folds);
}
