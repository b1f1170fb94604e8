"use strict";

// The page talks to the server that it came from, and to nobody else. What models and servers say is only ever put
// into the page as text (textContent), never as HTML.

const mostColumns = 4;
const alternatives = 5; // tokens that are asked for beside each one

const $ = (id) => document.getElementById(id);

// What the page knows. It is lost with the page.
const state = {
  key: "", // sent as Authorization: Bearer
  models: [], // as GET /v1/models lists them
  columns: [], // names of the models that are asked, from left to right
  turns: [], // {text, answers}: a message, and what each column has answered
  writing: new Set(), // AbortControllers of answers that are being written
};

// make builds an element from its name, its properties and what is in it: elements, or text.
function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role" || key === "scope") element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

/* ---- The server ---- */

// ask makes a request, and asks for a key where the server wants one. It gives the response of a request that went
// well; otherwise it throws what the server says.
async function ask(path, body, signal) {
  for (;;) {
    const options = { headers: {}, signal };
    if (state.key) options.headers.Authorization = "Bearer " + state.key;
    if (body) {
      options.method = "POST";
      options.headers["Content-Type"] = "application/json";
      options.body = JSON.stringify(body);
    }

    const used = state.key;
    const response = await fetch(path, options).catch((error) => {
      throw error.name === "TypeError" ? new Error("the server cannot be reached") : error;
    });
    if (response.ok) return response;
    if (response.status === 401) {
      await askKey(used);
      continue;
    }

    let said = response.status + " " + response.statusText;
    try {
      said = (await response.json()).error.message || said;
    } catch {
      // It has no words for it.
    }
    throw new Error(said);
  }
}

const askJSON = async (path, body, signal) => (await ask(path, body, signal)).json();

let gate = null; // of the dialog that is open

// askKey waits for a key. Requests that fail together wait for the same one.
function askKey(used) {
  if (state.key !== used) return Promise.resolve(); // another request has asked meanwhile
  if (gate) return gate;

  gate = new Promise((resolve, reject) => {
    const dialog = $("gate");
    $("gate-fault").textContent = used ? "The server does not take this key." : "";
    $("key").value = "";
    $("unlock").onsubmit = (event) => {
      event.preventDefault();
      state.key = $("key").value.trim();
      dialog.close("key");
    };
    dialog.onclose = () => {
      gate = null;
      $("key").value = "";
      if (dialog.returnValue === "key" && state.key) resolve();
      else reject(new Error("the server asks for a key"));
      dialog.returnValue = "";
    };
    dialog.showModal();
  });
  return gate;
}

// events gives the values of a stream of server-sent events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the stream ended early");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

/* ---- Models ---- */

const modelOf = (name) => state.models.find((m) => m.id === name);

async function loadModels() {
  const list = await askJSON("v1/models");
  state.models = list.data;
  state.columns = state.columns.filter(modelOf);
  if (state.columns.length === 0) state.columns = state.models.slice(0, 2).map((m) => m.id);
  showModels();
}

const grouped = (n) => n.toLocaleString("en");

// counted is a number of parameters or bytes in a short form.
function counted(n) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (n >= size) return (n / size).toFixed(n < 10 * size ? 1 : 0) + " " + unit;
  }
  return n + " ";
}

// factsOf says what a model is, as far as the server tells.
function factsOf(m) {
  const facts = [];
  if (m.parent) facts.push("adapter of " + m.parent);
  if (m.parameters) facts.push(counted(m.parameters).trim() + " parameters");
  if (m.weight_bytes) facts.push(counted(m.weight_bytes) + "B of weights");
  if (m.max_model_len) facts.push(grouped(m.max_model_len) + " tokens");
  if (m.chat === false) facts.push("no chat template: it continues the text");
  return facts.join(" · ");
}

function showModels() {
  const row = $("models");
  row.replaceChildren(...state.columns.map((name, at) => {
    const select = make("select", { "aria-label": "Model " + (at + 1) },
      ...state.models.map((m) => make("option", { value: m.id, selected: m.id === name }, m.id)));
    select.onchange = () => {
      state.columns[at] = select.value;
      showModels();
      $("models").children[at].querySelector("select").focus();
    };

    const pick = make("div", { className: "pick" }, select);
    if (state.columns.length > 1) {
      const drop = make("button", { type: "button", className: "drop", "aria-label": "Remove " + name }, "✕");
      drop.onclick = () => removeColumn(at);
      pick.append(drop);
    }
    return make("div", { className: "model c" + at }, pick,
      make("p", { className: "facts" }, factsOf(modelOf(name))));
  }));
  columnsChanged();
}

// columnsChanged lets what depends on the number of columns follow it.
function columnsChanged() {
  document.body.style.setProperty("--n", Math.max(state.columns.length, 1));
  const busy = state.writing.size > 0;
  $("add").disabled = busy || state.columns.length >= mostColumns || state.models.length === 0;
  $("fresh").disabled = busy || state.turns.length === 0;
  for (const control of $("models").querySelectorAll("select, button")) control.disabled = busy;
}

// addColumn adds one with a model that is in no other; there may be new ones, of adapters that were loaded meanwhile.
async function addColumn() {
  try {
    await loadModels();
  } catch (error) {
    $("status").textContent = error.message;
    return;
  }
  if (state.columns.length >= mostColumns || state.writing.size > 0) return;
  const free = state.models.find((m) => !state.columns.includes(m.id));
  state.columns.push((free || state.models[0]).id);
  showModels();
}

// removeColumn takes a column out, with its answers.
function removeColumn(at) {
  state.columns.splice(at, 1);
  for (const turn of state.turns) {
    const gone = turn.answers.splice(at, 1)[0];
    if (gone) gone.element.remove();
    turn.answers.forEach((a, i) => a && colour(a, i));
  }
  showModels();
}

const colour = (answer, at) => { answer.element.className = answer.element.className.replace(/\bc\d\b/, "c" + at); };

/* ---- A conversation ---- */

// numberOf reads a setting; undefined where it is empty.
function numberOf(id) {
  const text = $(id).value.trim();
  return text === "" || !Number.isFinite(Number(text)) ? undefined : Number(text);
}

// history is what a column's model gets to see of the turns before one: a column that was added later takes over the
// answers of the first.
function history(at, until) {
  const messages = [];
  const system = $("system").value.trim();
  if (system) messages.push({ role: "system", content: system });
  for (const turn of state.turns) {
    if (turn === until) break;
    const answer = turn.answers[at] || turn.answers.find((a) => a);
    if (!answer || answer.text === "") continue; // it failed, or was stopped at once
    messages.push({ role: "user", content: turn.text }, { role: "assistant", content: answer.text });
  }
  if (until) messages.push({ role: "user", content: until.text });
  return messages;
}

// plain is a conversation as the text that a model without a chat template continues.
const plain = (messages) => messages.map((m) => m.content + (m.role === "system" ? "\n\n" : "")).join("");

async function send(event) {
  event.preventDefault();
  const text = $("prompt").value;
  if (text.trim() === "" || state.writing.size > 0 || state.columns.length === 0) return;

  $("prompt").value = "";
  $("hint").hidden = true;
  const turn = { text, answers: [] };
  state.turns.push(turn);
  const answers = make("div", { className: "answers" });
  $("turns").append(make("section", { className: "turn" }, make("p", { className: "said" }, text), answers));

  const began = state.columns.map((name, at) => {
    const answer = newAnswer(modelOf(name), at, history(at, turn));
    turn.answers.push(answer);
    answers.append(answer.element);
    return write(answer);
  });
  scrollDown(true);

  await Promise.all(began);
  const done = turn.answers.filter((a) => a.finish).length;
  $("status").textContent = done === turn.answers.length
    ? (done === 1 ? "The answer is there." : "All " + done + " answers are there.")
    : done + " of " + turn.answers.length + " answers are whole.";
  $("prompt").focus({ preventScroll: true });
}

// newAnswer makes an answer without a word yet.
function newAnswer(model, at, messages) {
  const a = { model, messages, text: "", tokens: [], waiting: [], written: 0, nats: 0, finish: "" };
  a.body = make("div", { className: "text", tabIndex: 0, role: "group",
    "aria-label": "Answer of " + model.id + "; arrow keys move from token to token" });
  a.facts = make("p", { className: "facts" }, "waiting…");
  a.element = make("article", { className: "answer writing c" + at },
    make("h2", {}, model.id), a.body, a.facts);
  watchTokens(a);
  return a;
}

// write lets a model write its answer.
async function write(a) {
  const control = new AbortController();
  state.writing.add(control);
  busyChanged();

  const body = {
    model: a.model.id, stream: true, stream_options: { include_usage: true },
    temperature: numberOf("temperature"), max_tokens: numberOf("tokens"), seed: numberOf("seed"),
  };
  let path = "v1/chat/completions";
  if (a.model.chat === false) {
    path = "v1/completions";
    Object.assign(body, { prompt: plain(a.messages), logprobs: alternatives });
  } else {
    Object.assign(body, { messages: a.messages, logprobs: true, top_logprobs: alternatives });
  }

  a.asked = performance.now();
  try {
    for await (const event of events(await ask(path, body, control.signal))) take(a, event);
  } catch (error) {
    if (control.signal.aborted) a.stopped = true;
    else a.element.append(make("p", { className: "fault", role: "alert" }, error.message));
  }

  a.element.classList.remove("writing");
  state.writing.delete(control);
  busyChanged();
  showFacts(a);
  if (a.text !== "" && state.models.length > 1) offerScores(a);
}

// take adds what an event of a stream says to an answer.
function take(a, event) {
  if (event.usage) a.usage = event.usage;
  const choice = event.choices && event.choices[0];
  if (!choice) return;

  const text = choice.delta ? choice.delta.content || "" : choice.text;
  const tokens = tokensOf(choice.logprobs);
  if (text !== "" || tokens.length > 0) {
    a.last = performance.now();
    a.first ??= a.last;
    a.tokens.push(...tokens);
  }

  // A token may be a part of a character, or wait for what might be the begin of a stop text: it belongs to the text
  // that comes next. One that shows no text at all, such as the end of the answer, is no part of it.
  a.waiting.push(...tokens);
  if (text !== "") {
    a.text += text;
    const span = make("span", { className: "t" }, text);
    span.tokens = a.waiting;
    a.waiting = [];
    a.written += span.tokens.length;
    a.nats += bits(span.tokens) * Math.LN2;
    span.style.setProperty("--p", warmth(span.tokens) + "%");
    a.body.append(span);
    scrollDown(false);
  }
  if (choice.finish_reason) a.finish = choice.finish_reason;
  showFacts(a);
}

// tokensOf brings the two forms of the API into one: {text, logprob, tops: [{text, logprob}]}.
function tokensOf(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    return logprobs.content.map((t) => ({
      text: t.token, logprob: t.logprob, tops: t.top_logprobs.map((o) => ({ text: o.token, logprob: o.logprob })),
    }));
  }
  return logprobs.tokens.map((text, i) => ({
    text, logprob: logprobs.token_logprobs[i],
    tops: Object.entries(logprobs.top_logprobs[i] || {}).map(([text, logprob]) => ({ text, logprob }))
      .sort((x, y) => y.logprob - x.logprob),
  }));
}

const bits = (tokens) => tokens.reduce((sum, t) => sum - (t.logprob || 0) / Math.LN2, 0);

// warmth is how strongly a piece of text is coloured: not at all where it was certain, fully from 10 bits on.
const warmth = (tokens) => Math.round(Math.min(bits(tokens) / 10, 1) * 75);

// showFacts says how fast and how sure an answer was.
function showFacts(a) {
  const facts = [];
  if (a.first) {
    facts.push("first token after " + ((a.first - a.asked) / 1000).toFixed(2) + " s");
    const n = a.tokens.length;
    if (n > 1 && a.last > a.first) facts.push(figure((n - 1) * 1000 / (a.last - a.first)) + " tokens/s");
    facts.push((a.usage ? a.usage.completion_tokens : n) + " tokens");
    if (a.written > 0) facts.push("perplexity " + figure(Math.exp(a.nats / a.written)));
  }
  if (a.finish === "length") facts.push("cut at the longest answer");
  if (a.stopped) facts.push("stopped");
  a.facts.textContent = facts.join(" · ") || (a.element.classList.contains("writing") ? "waiting…" : "");
}

const figure = (x) => (x < 100 ? x.toPrecision(3) : x < 1e6 ? grouped(Math.round(x)) : x.toExponential(2));

/* ---- The same answer under every model ---- */

function offerScores(a) {
  const button = make("button", { type: "button", className: "score" }, "Perplexity under each model");
  button.onclick = async () => {
    button.disabled = true;
    button.textContent = "Scoring…";
    try {
      const names = [...new Set([a.model.id, ...state.columns])];
      const models = names.length > 1 ? names.map(modelOf) : state.models.slice(0, mostColumns);
      showScores(a, await Promise.all(models.map((m) => score(m, a))));
      button.remove();
    } catch (error) {
      button.disabled = false;
      button.textContent = "Perplexity under each model";
      a.element.append(make("p", { className: "fault", role: "alert" }, error.message));
    }
  };
  a.element.append(button);
}

// score asks a model how likely an answer is, behind the same conversation in its own words.
async function score(model, a) {
  const asked = model.chat === false ? { prompt: plain(a.messages) } : { messages: a.messages };
  const prompt = (await askJSON("tokenize", { model: model.id, ...asked })).tokens;
  const answer = (await askJSON("tokenize", { model: model.id, prompt: a.text, add_special_tokens: false })).tokens;
  const said = await askJSON("v1/completions", {
    model: model.id, prompt: [prompt.concat(answer)], echo: true, logprobs: 0, max_tokens: 0, temperature: 0,
  });
  const logprobs = said.choices[0].logprobs.token_logprobs.slice(prompt.length);
  const nats = -logprobs.reduce((sum, p) => sum + p, 0);
  return { model, tokens: answer.length, nats, perplexity: Math.exp(nats / answer.length) };
}

// showScores puts the perplexities of an answer below it. Those of other tokenizers do not compare; bits for each
// character do.
function showScores(a, scores) {
  const own = scores.find((s) => s.model === a.model) || scores[0];
  const characters = [...a.text].length;
  const signed = (x) => (x >= 9 ? "× " + figure(x + 1) : (x > 0 ? "+" : x < 0 ? "−" : "±") + (100 * Math.abs(x)).toFixed(1) + " %");
  const rows = scores.map((s) => make("tr", {}, make("th", { scope: "row" }, s.model.id),
    make("td", {}, figure(s.perplexity)),
    make("td", {}, s === own ? "" : s.tokens === own.tokens ? signed(s.perplexity / own.perplexity - 1)
      : "other tokens"),
    make("td", {}, (s.nats / Math.LN2 / characters).toFixed(3))));
  const head = ["model", "perplexity", "difference", "bits/char"].map((name) => make("th", { scope: "col" }, name));
  a.element.append(make("div", { className: "scores", tabIndex: 0, role: "region", "aria-label": "Scores" },
    make("table", {}, make("caption", {}, "This answer under each model"),
      make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))));
}

/* ---- What stands behind a token ---- */

const shown = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(nothing)";
const percent = (logprob) => {
  const p = 100 * Math.exp(logprob);
  return (p >= 10 ? p.toFixed(0) : p >= 0.01 ? p.toPrecision(2) : "<0.01") + " %";
};

// watchTokens lets a pointer, a finger or the arrow keys show the tokens of an answer.
function watchTokens(a) {
  a.body.onmouseover = (event) => event.target.tokens && showToken(event.target);
  a.body.onmouseleave = hideToken;
  a.body.onclick = (event) => event.target.tokens && showToken(event.target);
  a.body.onblur = hideToken;
  a.body.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const now = [...a.body.children].findIndex((span) => span.classList.contains("on"));
    const next = a.body.children[now + (step || 0)];
    if (!step || !next || now < 0 && step < 0) return;
    event.preventDefault();
    showToken(next);
  };
}

let shownAt = 0; // where the page was scrolled to

function showToken(span) {
  hideToken();
  shownAt = scrollY;
  span.classList.add("on");

  const panel = $("token");
  panel.replaceChildren();
  for (const t of span.tokens) {
    const others = t.tops.filter((o) => o.text !== t.text);
    const list = [...others, t].sort((x, y) => y.logprob - x.logprob);
    panel.append(make("table", {}, make("tbody", {}, ...list.map((o) => make("tr", { className: o === t ? "chosen" : "" },
      make("td", {}, (o === t ? "▸ " : "  ") + shown(o.text)), make("td", {}, percent(o.logprob)))))));
    panel.append(make("p", {}, bits([t]).toFixed(1) + " bits of surprise"));
  }
  if (span.tokens.length === 0) panel.append(make("p", {}, "The server gives no likelihoods."));

  // Beside the token, inside of the window.
  panel.hidden = false;
  const at = span.getClientRects()[0];
  const { width, height } = panel.getBoundingClientRect();
  const below = at.bottom + 8 + height < innerHeight;
  panel.style.left = Math.max(8, Math.min(at.left, innerWidth - width - 8)) + "px";
  panel.style.top = Math.max(8, below ? at.bottom + 8 : at.top - height - 8) + "px";
}

function hideToken() {
  $("token").hidden = true;
  for (const span of document.querySelectorAll(".t.on")) span.classList.remove("on");
}

/* ---- The page ---- */

function busyChanged() {
  const busy = state.writing.size > 0;
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  if (busy) $("status").textContent = "";
  columnsChanged();
}

function stop() {
  for (const control of state.writing) control.abort();
}

// scrollDown follows what is written, unless the reader has scrolled up.
function scrollDown(always) {
  const root = document.documentElement;
  if (always || root.scrollHeight - root.scrollTop - innerHeight < 160) window.scrollTo(0, root.scrollHeight);
}

function newConversation() {
  for (const turn of $("turns").querySelectorAll(".turn")) turn.remove();
  state.turns = [];
  $("hint").hidden = false;
  $("status").textContent = "";
  columnsChanged();
  $("prompt").focus();
}

$("ask").onsubmit = send;
$("stop").onclick = stop;
$("add").onclick = addColumn;
$("fresh").onclick = newConversation;
$("surprise").onchange = () => $("turns").classList.toggle("surprised", $("surprise").checked);
$("prompt").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
};
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("gate").open) return;
  if ($("token").hidden) stop();
  hideToken();
});
window.addEventListener("scroll", () => {
  if (scrollY !== shownAt) hideToken(); // the token has moved away from under it
}, { passive: true });

columnsChanged();
loadModels().then(() => $("prompt").focus(), (error) => {
  $("status").textContent = "The models cannot be listed: " + error.message;
});
