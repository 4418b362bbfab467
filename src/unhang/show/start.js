// Puts the page together.

const view = JSON.parse(byId("data").textContent);
showAnswer(view);
showGraph(view.graph);
showStacks(view.stacks);
showFixes(view.fixes, view.useless, view.steps);
showWithoutFinding(view);
showCourse(view.course);
showFolds(view);
showLanes(view).catch((problem) => {
  byId("lanes-note").textContent = `The lanes cannot be drawn here: ${problem.message}`;
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
