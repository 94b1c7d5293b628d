// Keeps the page up to date, and answers keys. Everything works without it, but by hand.
"use strict";
(() => {
  const LOOK_MS = 1500, SLOW_MS = 5000, TICK_MS = 1000;
  const byId = (id) => document.getElementById(id);
  const main = byId("main"), trouble = byId("trouble"), liveSwitch = byId("live-switch");
  const kept = (name, fallback) => { try { return localStorage.getItem(name) ?? fallback; } catch { return fallback; } };
  const keep = (name, value) => { try { localStorage.setItem(name, value); } catch { /* not allowed here */ } };

  // Time goes on by itself, from the clock of the server: that of the browser may be wrong by hours.
  const answeredMs = Date.now() - performance.now() + (performance.getEntriesByType("navigation")[0]?.responseStart ?? 0);
  let aheadMs = Date.parse(byId("server-now").textContent) - answeredMs;
  const setClock = (date) => {
    const ahead = Date.parse(date ?? "") - Date.now();
    if (Math.abs(ahead - aheadMs) > 2000) aheadMs = ahead;  // the header tells whole seconds
  };
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const short = (s) => { const unit = units.find(([, size]) => s >= size) ?? units[3]; return Math.floor(s / unit[1]) + unit[0]; };
  const ago = (s) => Math.abs(s) < 1 ? "now" : s < 0 ? "in " + short(-s) : short(s) + " ago";
  const two = (n) => String(n).padStart(2, "0");
  const stopwatch = (s) => {
    s = Math.max(0, Math.floor(s));
    if (s >= 86400) return Math.floor(s / 86400) + "d " + two(Math.floor(s % 86400 / 3600)) + "h";
    const minutes = Math.floor(s / 60), hours = Math.floor(minutes / 60);
    return hours ? `${hours}:${two(minutes % 60)}:${two(s % 60)}` : `${minutes}:${two(s % 60)}`;
  };
  const tick = () => {
    const now = Date.now() + aheadMs;
    for (const each of document.querySelectorAll("time[data-ago], time[data-elapsed], time[data-left]")) {
      const s = (now - Date.parse(each.dateTime)) / 1000, done = Number(each.dataset.left);
      const text = done ? stopwatch(s * (1 - done) / done) : "elapsed" in each.dataset ? stopwatch(s) : ago(s);
      if (each.textContent !== text) each.textContent = text;
    }
  };

  // What has changed is put in place of what was there. Nothing else moves, and nothing that a person is at.
  const fields = (form) => [...form.elements].filter((each) => each.matches("input:not([type=hidden]), textarea, select"));
  const isChanged = (field) => field.matches("select") ? [...field.options].some((each) => each.selected !== each.defaultSelected)
    : field.matches("[type=checkbox], [type=radio]") ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;
  const isBeingFilled = (form) => fields(form).some((each) => each === document.activeElement || isChanged(each));
  const morphing = {
    morphStyle: "innerHTML",
    ignoreActiveValue: true,
    callbacks: {
      beforeAttributeUpdated: (name, node) =>
        !(name === "open" && node.tagName === "DETAILS") && !(name === "class" && node.classList.contains("chosen")),
      beforeNodeMorphed: (old) => !(old.nodeType === 1 && (old.hasAttribute("data-keep") || old.matches("form") && isBeingFilled(old))),
    },
  };
  // A list that somebody is at keeps its rows: they are named to the server, which counts what is new meanwhile.
  const MAX_NAMED = 6000;
  let isPointed = false;
  document.addEventListener("pointerover", (event) => { isPointed = event.pointerType === "mouse" && !!event.target.closest("[data-steady]"); });
  document.documentElement.addEventListener("pointerleave", () => { isPointed = false; });
  const namedRows = () => {
    const list = main.querySelector("[data-steady]");
    if (!list) return "";
    const isAtIt = list.dataset.steady === "always" || isPointed || list.contains(document.activeElement) || list.getBoundingClientRect().top < 0;
    const named = isAtIt ? [...list.querySelectorAll("tr[data-id]")].map((row) => encodeURIComponent(row.dataset.id)).join(",") : "";
    return named.length > MAX_NAMED ? "" : named;
  };
  let tag = null, isLooking = false, timer = 0;
  const isWanted = () => main.hasAttribute("data-live") && liveSwitch.getAttribute("aria-pressed") === "true" && !document.hidden;
  const say = (text) => { if (trouble.textContent !== text) trouble.textContent = text; trouble.hidden = !text; };
  // A press must hit what was under the pointer, and a question must still have what it asks about. So nothing moves
  // while somebody presses, or has just brought the pointer to something that can be pressed.
  const AIM_MS = 1500;
  let isPressed = false, movedMs = 0;
  document.addEventListener("pointermove", () => { movedMs = performance.now(); }, { passive: true });
  document.addEventListener("pointerdown", () => { isPressed = true; });
  for (const end of ["pointerup", "pointercancel", "dragend"]) document.addEventListener(end, () => { isPressed = false; });
  const isAiming = () => performance.now() - movedMs < AIM_MS && main.querySelector("a:hover, button:hover, summary:hover") !== null;
  const isHeld = () => isPressed || isAiming() || document.querySelector("dialog[open]") !== null;
  // A new problem is read aloud, once. Its numbers go on without a word.
  const news = () => [...main.querySelectorAll("[data-news]")].map((each) => [each.dataset.news.replace(/\d[\d,]*\+?[smhd]?/g, "#"), each.dataset.news]);
  const putIn = (fresh) => {
    const known = new Set(news().map(([key]) => key));
    Idiomorph.morph(main, fresh.innerHTML, morphing);
    const told = news().filter(([key]) => !known.has(key)).map(([, text]) => text);
    if (told.length) byId("news").textContent = told.join(". ");
  };
  const faultOf = (fresh) => [...fresh?.querySelectorAll("h1, h1 + p") ?? []].map((each) => each.textContent.trim().replace(/\.$/, "")).join(". ");
  const look = async () => {
    if (isLooking || !isWanted()) return;
    if (isHeld()) return next();
    isLooking = true;
    try {
      const headers = { "X-Live": "1" };
      if (tag) headers["If-None-Match"] = tag;
      const named = namedRows();
      if (named) headers["X-Rows"] = named;
      const answer = await fetch(location.href.split("#")[0], { headers, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(20000) });
      setClock(answer.headers.get("Date"));
      if (answer.status === 200 || answer.status === 503) {
        const found = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = found.getElementById("main");
        if (answer.status === 503 && !main.querySelector("[data-fault]")) say(faultOf(fresh));
        else if (isWanted() && !isHeld()) {
          say("");
          tag = answer.status === 200 ? answer.headers.get("ETag") : null;
          putIn(fresh);
          document.title = found.title;
          tick();
        }
      } else if (answer.status === 304) say("");
      else say(answer.status === 403 || answer.status === 401 ? "You are not allowed to see this page any more. Sign in again." : "The server does not answer this page now (" + answer.status + ").");
    } catch {
      say("The server does not answer. This page tries again by itself.");
    } finally {
      isLooking = false;
      next();
    }
  };
  const next = () => {
    clearTimeout(timer);
    if (isWanted()) timer = setTimeout(look, trouble.hidden ? LOOK_MS : SLOW_MS);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  liveSwitch.addEventListener("click", () => {
    const isOn = liveSwitch.getAttribute("aria-pressed") !== "true";
    liveSwitch.setAttribute("aria-pressed", String(isOn));
    liveSwitch.textContent = isOn ? "Live" : "Paused";
    keep("taskmanager-live", isOn ? "on" : "off");
    if (isOn) look();
  });

  // An action on many tasks goes on page by page. Whoever leaves its page, by Stop or otherwise, stops it.
  const goOn = async () => {
    const form = main.querySelector("form[data-go-on]");
    if (!form) return;
    form.hidden = true; // its button is for who has no script
    let wait = 0;
    try {
      const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)), cache: "no-store", redirect: "error" });
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.ok) {
        say("");
        found.querySelector("form[data-go-on]")?.setAttribute("hidden", "");
        putIn(found.getElementById("main"));
        document.title = found.title;
      } else {
        say(faultOf(found.getElementById("main")) || "The server does not answer this page now (" + answer.status + ").");
        if (answer.status !== 503) { form.hidden = false; return; }
        wait = SLOW_MS;
      }
    } catch {
      say("The server does not answer. This page tries again by itself.");
      wait = SLOW_MS;
    }
    setTimeout(goOn, wait);
  };
  goOn();

  // Questions before what cannot be undone.
  const ask = byId("ask");
  let settle = () => {};
  const asked = (text) => new Promise((resolve) => {
    settle(false);
    settle = resolve;
    byId("ask-text").textContent = text;
    ask.returnValue = "no";
    ask.showModal();
  });
  ask.addEventListener("click", (event) => { const button = event.target.closest("button"); if (button) ask.close(button.value); });
  // The browser tells that it was closed later, and by then the next question may be there.
  ask.addEventListener("close", () => { if (!ask.open) settle(ask.returnValue === "yes"); });
  document.addEventListener("submit", async (event) => {
    const form = event.target, text = form.dataset.ask;
    if (!text || form.dataset.isSure) return;
    event.preventDefault();
    if (await asked(text)) { form.dataset.isSure = "1"; form.requestSubmit(event.submitter); delete form.dataset.isSure; }
  });

  // Keys. Letters do something only while a list has the focus, and can be switched off.
  const keys = byId("keys"), keysSwitch = byId("keys-switch");
  keys.addEventListener("click", (event) => { if (event.target.closest("button")) keys.close(); });
  const keysOpen = byId("keys-open");
  keysOpen.hidden = false;
  keysOpen.addEventListener("click", () => keys.showModal());
  keysSwitch.checked = kept("taskmanager-keys", "on") === "on";
  keysSwitch.addEventListener("change", () => keep("taskmanager-keys", keysSwitch.checked ? "on" : "off"));
  const rows = (list) => [...list.querySelectorAll("tbody tr")];
  const choose = (list, step) => {
    const all = rows(list), at = all.findIndex((row) => row.classList.contains("chosen"));
    const row = all[Math.min(all.length - 1, Math.max(0, at + step))];
    if (!row) return;
    all[at]?.classList.remove("chosen");
    row.classList.add("chosen");
    row.scrollIntoView({ block: "nearest" });
    (row.querySelector("a[href]") ?? row).focus({ preventScroll: true });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select") || document.querySelector("dialog[open]")) return;
    if (!keysSwitch.checked) return;
    if (event.key === "?") { event.preventDefault(); keys.showModal(); return; }
    const search = document.querySelector("input[type=search]"), list = event.target.closest("[data-list]");
    if (event.key === "/" && search) { event.preventDefault(); search.focus(); search.select(); }
    else if (list && event.key === "j") choose(list, 1);
    else if (list && event.key === "k") choose(list, -1);
    else if (list && event.key === "r") list.querySelector("tr.chosen form[data-retry]")?.requestSubmit();
  });

  liveSwitch.hidden = !main.hasAttribute("data-live");
  if (kept("taskmanager-live", "on") === "off") { liveSwitch.setAttribute("aria-pressed", "false"); liveSwitch.textContent = "Paused"; }
  setInterval(tick, TICK_MS);
  next();
})();
