'use strict';
const one = id => document.getElementById(id);
const {sections, words, places} = JSON.parse(one('index').textContent);
const articles = [...document.querySelectorAll('article')];
const links = [...document.querySelectorAll('#contents a')];
const query = one('query'), found = one('found');
const title = document.title;

// Tables scroll by themselves, so that the page does not.
for (const table of document.querySelectorAll('article table')) {
  const box = document.createElement('div');
  box.className = 'scroll'; box.tabIndex = 0;
  table.replaceWith(box); box.append(table);
}

// A block of commands has a button that copies them, without prompts and output.
for (const pre of document.querySelectorAll('article pre')) {
  const lines = pre.textContent.split('\n');
  const commands = lines.filter(l => l.startsWith('$ ')).map(l => l.slice(2));
  const button = document.createElement('button');
  button.type = 'button'; button.textContent = 'copy'; button.className = 'copy';
  button.addEventListener('click', async () => {
    const text = (commands.length ? commands : lines).join('\n').trimEnd() + '\n';
    try { await navigator.clipboard.writeText(text); button.textContent = 'copied'; } catch { button.textContent = 'select and copy by hand'; }
    setTimeout(() => { button.textContent = 'copy'; }, 1500);
  });
  const box = document.createElement('div');
  box.className = 'code'; pre.tabIndex = 0;
  pre.replaceWith(box); box.append(pre, button);
}

// dress is done to a page when it is first shown. Lines of output that are prose wrap, tables keep their columns; flags
// and figures are not broken, names of methods in tables after a _ alone.
function dress(article) {
  if (article.dataset.dressed) return;
  article.dataset.dressed = '';
  const span = (name, ...of) => { const s = document.createElement('span'); s.className = name; s.append(...of); return s; };
  const flags = text => text.split(/((?<!\S)--?[\w-]+)/).map((w, i) => i % 2 ? span('whole', w) : w);
  for (const code of article.querySelectorAll('pre code')) {
    const lines = code.textContent.split('\n');
    if (!lines.some(l => l.startsWith('$ '))) continue;
    const prose = l => l.length > 80 && !/\S {2}|──/.test(l);
    code.replaceChildren(...lines.flatMap((l, i) => [i ? '\n' : '', prose(l) ? span('prose', ...flags(l)) : l]));
  }
  for (const code of article.querySelectorAll(':not(pre) > code')) {
    const ends = w => typeof w === 'string' && code.closest('td') ? w.split(/(?<=_)/).flatMap((p, i) => i ? [document.createElement('wbr'), p] : [p]) : [w];
    code.replaceChildren(...flags(code.textContent).flatMap(ends));
  }
  const texts = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  for (let n; (n = texts.nextNode());) {
    const kept = n.data.replace(/ ± /g, '\u00a0±\u00a0').replace(/(\d) (?=%)/g, '$1\u00a0');
    if (kept !== n.data && !n.parentElement.closest('pre, code')) n.data = kept;
  }
}

// One page is shown at a time; a link to a heading shows its page.
function show() {
  const id = decodeURIComponent(location.hash.slice(1)) || articles[0].id;
  const target = document.getElementById(id);
  const article = target && target.closest('article') || articles[0];
  query.value = ''; found.hidden = true;
  for (const a of articles) a.hidden = a !== article;
  dress(article);
  for (const a of links) {
    const here = a.hash === '#' + article.id;
    if (here) { a.setAttribute('aria-current', 'page'); a.closest('details').open = true; inView(a); }
    else a.removeAttribute('aria-current');
  }
  document.title = (article.querySelector('h1')?.textContent || article.id) + ' · ' + title;
  if (target && target !== article) target.scrollIntoView(); else scrollTo(0, 0);
  contents(false);
}

// inView scrolls the contents alone: the page stays where it is.
function inView(a) {
  const nav = one('contents'), box = nav.getBoundingClientRect(), link = a.getBoundingClientRect();
  if (link.top < box.top || link.bottom > box.bottom) nav.scrollTop += link.top - box.top - box.height / 2;
}

function contents(open) {
  document.body.classList.toggle('open', open);
  one('menu').setAttribute('aria-expanded', open);
}

// at is the first word that is not before w.
function at(w) {
  let lo = 0, hi = words.length;
  while (lo < hi) { const m = (lo + hi) >> 1; if (words[m] < w) lo = m + 1; else hi = m; }
  return lo;
}

// scores gives each section that has a word beginning with w what that is worth.
function scores(w) {
  const out = new Map();
  for (let i = at(w); i < words.length && words[i].startsWith(w); i++) {
    const whole = words[i] === w ? 2 : 1;
    for (const p of places[i]) out.set(p >> 1, Math.max(out.get(p >> 1) || 0, whole * (p & 1 ? 5 : 1)));
  }
  return out;
}

function search() {
  const asked = query.value.toLowerCase().match(/[\p{L}\p{N}_]+(?:[-.][\p{L}\p{N}_]+)*/gu) || [];
  if (!asked.length) { show(); return; }
  let total;
  for (const w of asked) {
    const s = scores(w);
    total = total ? new Map([...total].filter(([n]) => s.has(n)).map(([n, v]) => [n, v + s.get(n)])) : s;
  }
  // Words that stand together as they were asked for count for more than the same words far apart.
  const phrase = query.value.trim().toLowerCase().replace(/\s+/g, ' ');
  if (asked.length > 1) for (const [n, v] of total) if (body(sections[n][0]).toLowerCase().includes(phrase)) total.set(n, v + 20);
  const hits = [...total].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  one('count').textContent = hits.length === 1 ? '1 section' : hits.length + ' sections' + (hits.length > 60 ? ', the first 60' : '');
  one('hits').replaceChildren(...hits.slice(0, 60).map(([n]) => {
    const [id, heading, page] = sections[n];
    const li = document.createElement('li'), a = document.createElement('a'), p = document.createElement('p');
    a.href = '#' + id; a.textContent = heading ? page + ': ' + heading : page;
    a.addEventListener('click', () => { if (location.hash === a.hash) show(); });
    p.append(...excerpt(id, asked, phrase));
    li.append(a, p);
    return li;
  }));
  for (const a of articles) a.hidden = true;
  found.hidden = false;
  scrollTo(0, 0);
}

// body is the text below a heading.
function body(id) {
  let n = document.getElementById(id), text = '';
  n = n.tagName === 'ARTICLE' ? n.querySelector('h1') || n.firstElementChild : n;
  for (n = n.nextElementSibling; n && !/^H[2-6]$/.test(n.tagName); n = n.nextElementSibling) text += ' ' + (n.querySelector?.('pre')?.textContent ?? n.textContent);
  return text.replace(/[─\s]+/g, ' ').trim();
}

// excerpt is the text below a heading around the words that were asked for, or else around the first of them.
function excerpt(id, asked, phrase) {
  const text = body(id), low = text.toLowerCase();
  const i = low.includes(phrase) ? low.indexOf(phrase) : Math.max(0, Math.min(...asked.map(w => low.indexOf(w)).filter(i => i >= 0).concat(low.length ? [low.length] : [0])));
  const from = i === low.length ? 0 : Math.max(0, i - 60);
  const out = [], piece = (from ? '… ' : '') + text.slice(from, from + 200) + (text.length > from + 200 ? ' …' : '');
  let rest = piece;
  while (rest) {
    const l = rest.toLowerCase();
    let best = -1, word = '';
    for (const w of asked) { const k = l.indexOf(w); if (k >= 0 && (best < 0 || k < best)) { best = k; word = w; } }
    if (best < 0) { out.push(rest); break; }
    const mark = document.createElement('mark');
    mark.textContent = rest.slice(best, best + word.length);
    out.push(rest.slice(0, best), mark);
    rest = rest.slice(best + word.length);
  }
  return out;
}

query.addEventListener('input', search);
query.addEventListener('keydown', e => { if (e.key === 'Escape') { query.value = ''; show(); } });
document.addEventListener('keydown', e => { if (e.key === '/' && document.activeElement !== query) { e.preventDefault(); query.focus(); } });
one('menu').addEventListener('click', () => contents(!document.body.classList.contains('open')));
addEventListener('hashchange', show);
show();
