// The page's own script: the sign-in, times, the state of the connection, and keys. Everything works without it, except
// that a page then shows its state at the time of loading.
"use strict";

// Sign in with the token after `#`, and remove it from the address and the history at once.
(async () => {
  const token = location.hash.slice(1);
  if (location.pathname !== "/" || token.length < 20) return;
  history.replaceState(null, "", "/");
  const reply = document.getElementById("reply");
  reply.textContent = "Signing in …";
  try {
    const response = await fetch("/sign-in", { method: "POST", body: new URLSearchParams({ token }), mode: "same-origin" });
    if (response.ok) location.replace("/waiting");
    else reply.textContent = await response.text();
  } catch {
    reply.textContent = "The page does not answer. Is callboard web running?";
  }
})();

// Send the secret of an answer link, which follows `#`, and remove it from the address and the history at once.
(() => {
  const secret = location.hash.slice(1);
  const form = document.getElementById("open-link");
  if (!form || secret.length < 20) return;
  history.replaceState(null, "", location.pathname);
  document.getElementById("secret").value = secret;
  form.submit();
})();

// Show times in the reader's time zone, and how long ago they were or how much time is left.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function span(seconds) {
  const at = UNITS.findIndex(([size]) => seconds >= size);
  if (at < 0) return "0 s";
  const [size, name] = UNITS[at];
  const whole = Math.floor(seconds / size);
  const next = UNITS[at + 1];
  const rest = next && whole < 10 ? Math.floor((seconds % size) / next[0]) : 0;
  return `${whole} ${name}` + (rest ? ` ${rest} ${next[1]}` : "");
}

const CLOCK = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "short" });
// The server groups times by the reader's days.
const ZONE = encodeURIComponent(Intl.DateTimeFormat().resolvedOptions().timeZone);
document.cookie = `callboard_zone=${ZONE}; path=/; SameSite=Strict; max-age=31536000`;

function showTimes() {
  const now = Date.now();
  for (const element of document.querySelectorAll("time[data-kind]")) {
    const at = new Date(element.dateTime);
    const seconds = Math.abs(at - now) / 1000;
    const until = element.dataset.kind === "until";
    const late = until && at < now;
    const text = element.dataset.kind === "for" ? `for ${span(seconds)}` : element.dataset.kind === "at" ? CLOCK.format(at) : until ? (late ? `deadline passed ${span(seconds)} ago, waited` : `${span(seconds)} left`) : `${span(seconds)} ago`;
    if (element.textContent !== text) element.textContent = text;
    element.classList.toggle("soon", until && seconds < 120);
    if (!element.title) element.title = at.toLocaleString();
  }
  const waiting = document.getElementById("waiting")?.dataset.count;
  const title = document.title.replace(/^\(\d+\) /, "");
  document.title = waiting > 0 ? `(${waiting}) ${title}` : title;
}

// Show whether the page follows: data of a page that has lost its server may be old.
function live(state, text) {
  const element = document.getElementById("live");
  if (!element || element.textContent === text) return;
  element.className = state;
  element.textContent = text;
}

// A lost connection is tried again: the first event of each try, after the first connection, says that it was lost.
let lost = "not connected";
document.addEventListener("htmx:sse:after:connection", () => {
  lost = "not connected";
  live("on", "live");
});
document.addEventListener("htmx:sse:before:connection", (event) => {
  if (event.detail.connection.attempt > 0) live("off", lost);
});
document.addEventListener("htmx:sse:error", (event) => {
  if (event.detail.status === 401) lost = "signed out";
  live("off", lost);
});
document.addEventListener("htmx:error", (event) => {
  if (event.target.matches?.("main")) live("off", lost);
  else if (event.target.matches?.("form")) say("callboard web does not answer: this may not have arrived. What you typed is kept.", "bad");
});

// Show what becomes of a form. The result of the one before would be read as that of this one.
function say(text, kind) {
  const line = document.createElement("p");
  line.className = kind;
  line.textContent = text;
  document.getElementById("reply").replaceChildren(line);
}

document.addEventListener("htmx:before:request", (event) => {
  if (event.target.matches?.("form")) say("Sending …", "");
});
document.addEventListener("htmx:after:swap", showTimes);

// Keep what is typed in a form of this tab until it is sent: a browser forgets it on Back, as no page may be stored.
// The hidden fields of the form are part of the key: a text for one content of a request is not offered for another.
const TYPED = "form[hx-post] :is(textarea, select, input:not([type=hidden], [type=file], [autocomplete]))";

function draftKey(field) {
  const form = field.form;
  const hidden = [...form.querySelectorAll("input[type=hidden]:not([name=form_token])")].map((each) => each.value);
  return JSON.stringify([form.getAttribute("action"), form.getAttribute("aria-label"), ...hidden, field.name]);
}

function keepDraft(field) {
  const text = field.type === "checkbox" ? String(field.checked) : field.value;
  try {
    sessionStorage.setItem(draftKey(field), text);
  } catch {
    sessionStorage.removeItem(draftKey(field)); // too long for the browser: the field still has it
  }
}

function restoreDrafts() {
  for (const field of document.querySelectorAll(TYPED)) {
    const text = sessionStorage.getItem(draftKey(field));
    if (text === null || field === document.activeElement) continue;
    if (field.type === "checkbox") field.checked = text === "true";
    else if (field.type !== "select-one" || [...field.options].some((option) => option.value === text)) field.value = text;
    const section = field.closest("details");
    if (section) section.open = true;
  }
}

document.addEventListener("input", (event) => {
  if (event.target.matches(TYPED)) keepDraft(event.target);
});
document.addEventListener("submit", (event) => {
  if (event.target.getAttribute("action") === "/sign-out") sessionStorage.clear();
});

// Empty a form whose text was sent.
document.addEventListener("htmx:after:request", (event) => {
  const form = event.target;
  if (!form.matches?.("form") || event.detail.ctx?.response?.status !== 200) return;
  for (const field of form.querySelectorAll(TYPED)) sessionStorage.removeItem(draftKey(field));
  form.reset();
});

// j and k move between requests and agents, as in lists of other tools.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  const step = { j: 1, k: -1 }[event.key];
  if (!step) return;
  const cards = [...document.querySelectorAll("[data-card]")];
  const at = cards.findIndex((card) => card.contains(document.activeElement));
  const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), cards.length - 1);
  cards[next]?.focus();
});

document.addEventListener("DOMContentLoaded", () => {
  restoreDrafts();
  showTimes();
  setInterval(showTimes, 1000);
});
