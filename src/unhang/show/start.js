// Puts the page together: what can be read stands there already, what is drawn comes after the first paint.

function start() {
  const view = JSON.parse(byId("data").textContent);
  showCopyButtons();
  showStacks(view.stacks);
  showRanks(view);
  showCourse(view.course);
  showLanes(view).catch((problem) => {
    byId("lanes").hidden = false;
    byId("lanes-note").textContent = `The lanes cannot be drawn here: ${problem.message}`;
  });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
}

start();
