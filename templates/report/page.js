"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  root.classList.add("js");

  // A tooltip shows the title of a mark, line by line, at once and in the colours of the page.
  all(".mark").forEach((mark) => {
    const title = mark.querySelector("title");
    mark.setAttribute("aria-label", title.textContent);
    title.remove();
  });
  let shown = null;
  const show = (mark) => {
    shown = mark;
    tip.replaceChildren(...mark.getAttribute("aria-label").split("\n").map((line) => {
      const row = document.createElement("div");
      row.textContent = line;
      return row;
    }));
    tip.hidden = false;
    const at = mark.getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const room = root.clientWidth - box.width - 8;
    const left = Math.max(8, Math.min(at.left + at.width / 2 - box.width / 2, room));
    const above = at.top - box.height - 8;
    tip.style.transform = `translate(${left}px, ${above > 8 ? above : at.bottom + 8}px)`;
  };
  const hide = () => {
    shown = null;
    tip.hidden = true;
  };
  const markOf = (event) => event.target.closest?.(".mark");
  document.addEventListener("pointerover", (event) => {
    const mark = markOf(event);
    if (mark) show(mark); else if (!markOf({ target: document.activeElement })) hide();
  });
  document.addEventListener("focusin", (event) => {
    const mark = markOf(event);
    if (mark) show(mark); else hide();
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", () => { if (shown) show(shown); }, { passive: true });
  document.addEventListener("click", (event) => markOf(event)?.focus());

  // A chart is one stop of the tab key; arrows go from mark to mark.
  const marksOf = (plot) => all(".mark:not(.off)", plot);
  const enter = (plot) => {
    all(".mark", plot).forEach((mark) => mark.setAttribute("tabindex", "-1"));
    marksOf(plot)[0]?.setAttribute("tabindex", "0");
  };
  all(".plot").forEach(enter);
  const STEP = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const mark = markOf(event);
    if (!mark) return;
    const marks = marksOf(mark.closest(".plot"));
    const next = event.key === "Home" ? 0 : event.key === "End" ? marks.length - 1
      : STEP[event.key] ? (marks.indexOf(mark) + STEP[event.key] + marks.length) % marks.length : -1;
    if (next < 0) return;
    event.preventDefault();
    mark.setAttribute("tabindex", "-1");
    marks[next].setAttribute("tabindex", "0");
    marks[next].focus();
  });

  const press = (button) => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    return on;
  };
  all("[data-toggle]").forEach((button) => button.addEventListener("click", () => {
    const on = press(button);
    all(`[data-series="${button.dataset.toggle}"]`).forEach((part) => part.classList.toggle("off", !on));
    all(".plot").forEach(enter);
  }));
  all(".axes").forEach((button) => button.addEventListener("click", () => {
    button.closest("figure").classList.toggle("log-axes", press(button));
  }));

  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  const name = () => { theme.textContent = `Use ${isDark() ? "light" : "dark"} colours`; };
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  name();

  // What is folded is printed too.
  addEventListener("beforeprint", () => all("details:not([open])").forEach((one) => {
    one.open = true;
    one.dataset.opened = "";
  }));
  addEventListener("afterprint", () => all("details[data-opened]").forEach((one) => {
    one.open = false;
    delete one.dataset.opened;
  }));
})();
