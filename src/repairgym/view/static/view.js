// Keyboard and live updates. Every page is whole without this file.
"use strict";

const POLL_MS = 2000;
const SLOWEST_MS = 16000;

// --- rows: j, k, Enter, x ---

const rows = () => [...document.querySelectorAll("[data-row]")];
const here = () => document.querySelector("[data-row].here");

function goTo(row) {
  if (!row) return;
  here()?.classList.remove("here");
  row.classList.add("here");
  row.scrollIntoView({ block: row.matches("article") ? "start" : "nearest" });
  const target = row.matches("article") ? row : row.querySelector("[data-open]");
  target?.focus({ preventScroll: true });
}

function step(by) {
  const all = rows();
  const place = all.indexOf(here());
  goTo(place < 0 ? all[by > 0 ? 0 : all.length - 1] : all[Math.min(all.length - 1, Math.max(0, place + by))]);
}

function open() {
  const row = here();
  if (row?.matches("article")) row.classList.toggle("folded");
  else row?.querySelector("[data-open]")?.click();
}

function choose() {
  const box = here()?.querySelector("input[name=of]");
  if (box) box.checked = !box.checked;
}

const follow = (selector) => document.querySelector(selector)?.click();

// --- shading of actions, remembered for this browser ---

function shade(isOn) {
  document.body.classList.toggle("shaded", isOn);
  const box = document.getElementById("shade");
  if (box) box.checked = isOn;
  try { localStorage.setItem("shade", isOn ? "1" : ""); } catch { /* storage may be forbidden */ }
}

// --- switches that are remembered for this browser: data-switch names what a page shows ---

function turn(name, isOn) {
  document.body.classList.toggle(`no-${name}`, !isOn);
  for (const box of document.querySelectorAll(`[data-switch=${name}]`)) box.checked = isOn;
  try { localStorage.setItem(name, isOn ? "1" : ""); } catch { /* storage may be forbidden */ }
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  Enter: open,
  x: choose,
  c: () => follow("#compare"),
  n: () => follow("a[rel=next]"),
  p: () => follow("a[rel=prev]"),
  ArrowRight: () => follow("a[rel=next]"),
  ArrowLeft: () => follow("a[rel=prev]"),
  o: () => turn("observations", document.body.classList.contains("no-observations")),
  u: () => follow("[data-up]"),
  t: () => follow("[data-tokens]"),
  g: () => follow("[data-group]"),
  s: () => shade(!document.body.classList.contains("shaded")),
  r: () => document.getElementById("note")?.focus(),
  "/": () => { const box = document.getElementById("search"); box?.focus(); box?.select(); },
  "?": () => document.getElementById("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  const target = event.target;
  if (event.key === "Escape" && target.matches("input, select, textarea")) { target.blur(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (target.matches("input:not([type=checkbox]), select, textarea")) return;
  if (event.key === "Enter" && target.matches("a, button, summary, input")) return;
  if (event.key.startsWith("Arrow") && target.closest("[role=region], pre")) return;
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

// --- outline follows the turn that is read ---

function watchTurns() {
  const links = new Map([...document.querySelectorAll(".outline a")].map((one) => [one.hash.slice(1), one]));
  if (!links.size) return;
  const seen = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) entry.isIntersecting ? seen.add(entry.target) : seen.delete(entry.target);
    const first = [...seen].sort((a, b) => a.offsetTop - b.offsetTop)[0];
    if (!first) return;
    for (const one of links.values()) one.classList.toggle("here", one.hash === `#${first.id}`);
  }, { rootMargin: "-70px 0px -50% 0px" });
  for (const id of links.keys()) { const part = document.getElementById(id); if (part) watcher.observe(part); }
}

// --- live: ask for the run's stamp; when it has changed, fetch this page and exchange the parts that change ---

function startLive() {
  const at = document.body.dataset.liveAt;
  if (!at) return;
  let stamp = document.body.dataset.stamp;
  let wait = POLL_MS;
  const state = document.getElementById("live-state");
  const say = (text, isLost) => { if (state.textContent !== text) state.textContent = text; state.classList.toggle("lost", isLost); };

  async function ask() {
    if (!document.hidden && !document.querySelector("input[name=of]:checked")) {
      try {
        const now = (await (await fetch(at)).json()).stamp;
        wait = now === stamp ? Math.min(SLOWEST_MS, wait * 1.5) : POLL_MS;
        if (now !== stamp && await exchange()) stamp = now;
        say(state.dataset.word, false);
      } catch {
        say("server is gone", true);
      }
    }
    setTimeout(ask, wait);
  }
  document.addEventListener("visibilitychange", () => { wait = POLL_MS; });
  setTimeout(ask, wait);
}

async function exchange() {
  const answer = await fetch(location.href);
  if (!answer.ok) return false;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const place = rows().indexOf(here());
  const open = new Set([...document.querySelectorAll("[data-live] details")].map((one, index) => one.open ? index : -1));
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (other) part.replaceWith(document.adoptNode(other));
  }
  const [state, word] = [document.getElementById("live-state"), fresh.getElementById("live-state")?.dataset.word];
  if (word) { state.dataset.word = word; state.classList.toggle("idle", word !== "live"); }
  document.querySelectorAll("[data-live] details").forEach((one, index) => { if (open.has(index)) one.open = true; });
  if (place >= 0) rows()[place]?.classList.add("here");
  return true;
}

// --- exported lists: rows of the page that hold a text ---

function filterRows(box) {
  const text = box.value.trim().toLowerCase();
  const all = [...document.querySelectorAll("tbody [data-row]")];
  for (const row of all) row.hidden = !row.textContent.toLowerCase().includes(text);
  document.getElementById("num-rows").textContent = text ? `${all.filter((row) => !row.hidden).length} of ${all.length}` : "";
}
document.querySelector("[data-filter]")?.addEventListener("input", (event) => filterRows(event.target));
if (window.self !== window.top) document.body.classList.add("framed");

async function copy(button) {
  const text = document.getElementById(button.dataset.copy)?.textContent ?? "";
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Not permitted"; }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
document.getElementById("show-help").addEventListener("click", KEYS["?"]);
document.getElementById("shade")?.addEventListener("change", (event) => shade(event.target.checked));
document.addEventListener("click", (event) => {
  const row = event.target.closest("[data-row]");
  if (row && row !== here()) { here()?.classList.remove("here"); row.classList.add("here"); }
});
for (const box of document.querySelectorAll("[data-switch]")) {
  box.addEventListener("change", () => turn(box.dataset.switch, box.checked));
  let stored = "1";
  try { stored = localStorage.getItem(box.dataset.switch) ?? "1"; } catch { /* storage may be forbidden */ }
  turn(box.dataset.switch, stored === "1");
}
let isShaded = "1";
try { isShaded = localStorage.getItem("shade") ?? "1"; } catch { /* storage may be forbidden */ }
shade(isShaded === "1");
watchTurns();
startLive();
