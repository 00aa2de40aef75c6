// Keeps the page up to date: the server sends its live part again and again.
"use strict";
const live = document.getElementById("live");
if (live && "live" in live.dataset) {
  const pause = document.getElementById("pause"), status = document.getElementById("status");
  let source, retry, silence, paused = false;

  const say = text => {
    clearTimeout(silence);
    if (text === "Live") silence = setTimeout(say, 15000, "No update for a while");
    status.textContent = text;
    status.className = text === "Live" ? "live" : "";
  };

  // A page without an answer of the database has what it had before, and says since when.
  const sayAge = () => say(document.getElementById("old")?.textContent ?? "Live");

  // The page waits while a form of it is used, or a part of it is selected.
  const busy = () => {
    const at = document.activeElement, selection = getSelection();
    return live.contains(at) && at.matches("input, select") || live.querySelector("details[open]") || !selection.isCollapsed && live.contains(selection.anchorNode) ||
      Array.from(live.querySelectorAll("input:not([type=hidden])")).some(input => input.value !== "");
  };

  const show = html => {
    if (busy()) {
      say("Waiting while you use the page");
      return;
    }
    const at = document.activeElement, href = live.contains(at) && at.getAttribute("href");
    live.innerHTML = html;
    sayAge();
    if (href) {
      Array.from(live.querySelectorAll("a")).find(a => a.getAttribute("href") === href)?.focus({preventScroll: true});
    }
  };

  const connect = () => {
    source?.close();
    clearTimeout(retry);
    say(paused ? "Paused" : "Connecting");
    if (paused || document.hidden) return;
    source = new EventSource(location.pathname + location.search);
    source.onopen = sayAge;
    source.onmessage = event => show(event.data);
    source.onerror = () => {
      say("No connection: the page may be old");
      if (source.readyState === EventSource.CLOSED) retry = setTimeout(connect, 10000);
    };
  };

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", paused);
    connect();
  });
  document.addEventListener("visibilitychange", connect);
  connect();
}
