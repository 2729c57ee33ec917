// --- what the page is about: one checkpoint, or where from and where to ---
const draw_title = () => {
  $("kind").textContent = `${along ? `Series of ${many(along.urls.length, "checkpoint")}` : comparing ? "Comparison" : converted ? "Conversion" : "Checkpoint"}${data.formats ? "" : ` · ${data.format}`}`;
  if (data.formats) $("sides").textContent = visible(data.urls.map((url, k) => `${(comparing ? ["A: ", "B: "] : ["from ", "to "])[k]}${url} (${data.formats[k]})`).join(" · "));
  else if (along) $("sides").textContent = visible(along.urls.length > 8 ? `from ${along.urls[0]} to ${along.urls.at(-1)}` : along.urls.join(" · "));
  else {
    const last = data.url.split("?")[0].split(/[/\\]/).filter(Boolean).pop() || data.url;
    $("name").textContent = visible(last);
    $("sides").textContent = visible(last === data.url ? "" : data.url);
  }
};
// --- the summary ---
const BESIDE = { buffer: "buffer", slot: "optimizer slot", step: "step counter", average: "moving average", state: "training value" };
const UNLIKE = /^(missing|shape|new)$/; // of the result of a conversion: nothing that its source could have as well
const card = (n, text, cls = "") => make("div", { className: cls }, make("b", {}, n), text);
const draw_cards = () => {
  const total = data.totals, kinds = new Map(), list = [], sum = (take) => data.names.reduce((n, _, i) => n + take(i), 0);
  for (let i = 0; i < rows; i++) kinds.set(kind_of_change(i), (kinds.get(kind_of_change(i)) || 0) + 1);
  const only = (kinds.get("only_a") || 0) + (kinds.get("only_b") || 0), differing = data.names.filter((_, i) => changed(i)).length;
  if (comparing && (kinds.get("equal") || 0) === rows) list.push(data.values ? card("the same", `${rows > 1 ? "all " : ""}${many(rows, "tensor")}, bit for bit`) : card("not read", "values; names, shapes and dtypes are the same"));
  else if (comparing) {
    if (kinds.get("renamed") && (kinds.get("renamed") + (kinds.get("equal") || 0)) === rows) list.push(card("the same", `weights, ${count(kinds.get("renamed"))} of them under other names`));
    list.push(apart ? card("0", kinds.get("renamed") ? `names in common, but ${many(kinds.get("renamed"), "equal tensor")}` : "names in common: nothing is compared", "warned") : card(`${count(differing - only)} of ${count(rows - only)}`, data.values ? `common tensors changed${kinds.get("shape") ? `, ${count(kinds.get("shape"))} of them in shape` : ""}` : "common tensors of another shape or dtype"));
    if (data.values && !apart) list.push(card(`${brief(sum((i) => measure("differing", i) || 0))} of ${brief(sum((i) => (/only|shape/.test(kind_of_change(i)) ? 0 : data.count[i])))}`, "values of common tensors changed"));
    if (only) list.push(card(`${count(kinds.get("only_a") || 0)} / ${count(kinds.get("only_b") || 0)}`, "only in A / only in B"));
    const ranks = data.values ? ranked_tensors() : [], unwell = ranks.filter((r) => r.unwell).length, grown = ranks.filter((r) => r.change === Infinity).length;
    if (unwell) list.push(card(count(unwell), `tensor${s(unwell)} with NaN or Inf on one side only`, "warned"));
    else if (data.values && !apart) list.push(grown ? card(count(grown), `tensor${s(grown)} that ${grown > 1 ? "were" : "was"} all zero in A`) : card(change_text(ranks[0]?.change ?? 0), `largest change of a ${ranks[0]?.beside ? "tensor" : "weight"}`));
  } else if (along) {
    const moves = data.names.map((_, i) => (along.step[i] || []).filter((x) => x !== null)), broken = data.names.map((_, i) => (along.norm[i] || []).some((now, k, all) => k && now !== null && all[k - 1] !== null && (now === UNWELL) !== (all[k - 1] === UNWELL))), drifts = data.names.map((_, i) => along.drift[i]?.at(-1) ?? 0).map((x) => (x < Infinity ? x : 0)), ours = drifts.map((x, i) => (is_beside(i) ? 0 : x)), last = largest(ours) || data.names.some((_, i) => !is_beside(i) && along.norm[i]?.includes(UNWELL)) ? ours : drifts, grown = moves.filter((m) => m.includes(Infinity)).length, norms = Object.values(along.norm), unwell = norms.filter((norm) => norm.includes(UNWELL)).length, first = along.urls.findIndex((_, k) => norms.some((norm) => norm[k] === UNWELL)), fell = norms.filter((norm) => norm[first] === UNWELL).length;
    list.push(card(count(along.urls.length), "checkpoints"), ...(unwell ? [card(count(unwell), `tensor${s(unwell)} with NaN or Inf, first in ${short_urls[first]}${fell < unwell ? ` (${count(fell)} of them)` : ""}`, "warned")] : []));
    if (!data.values) list.push(card("not read", "values: how the layers moved is not known"));
    else list.push(card(`${count(moves.filter((m, i) => broken[i] || m.some((x) => x > 0)).length)} of ${count(rows)}`, `tensors moved${grown ? `, ${count(grown)} of them from zero` : ""}`), ...((grown || unwell) && !largest(last) ? [] : [card(change_text(largest(last)), `largest change of a ${last === ours ? "weight" : "tensor"} from first to last${largest(last) > 0 ? `: ${told_name(last.indexOf(largest(last)))}` : ""}`)]));
  } else if (converted) {
    const lost = compared.missing.length, moved = rows > 1 ? kinds.get("renamed") || 0 : 0; // a tensor that is alone may be called by its file
    if (differing) list.push(card(count(differing), `tensor${s(differing)}, not what the conversion gives`, "warned"));
    if (lost) list.push(card(count(lost), `tensor${s(lost)} that the conversion gives ${lost > 1 ? "are" : "is"} missing`, "warned"));
    if (moved) list.push(card(count(moved), `tensor${s(moved)} under ${moved > 1 ? "other names" : "another name"} than the conversion gives`, "warned"));
    if (!(differing || lost || moved)) list.push(data.values ? card("exact", "bit for bit what the conversion gives") : card("not read", "values; names, shapes and dtypes are as converted"));
  }
  if (!comparing && !along) list.push(card(count(total.tensors), `tensor${s(total.tensors)}`), card(bytes(total.bytes), "in all"), card(count(total.parameters), "parameters"));
  if (alone && total.all !== total.parameters) list.push(card(count(total.all), `numbers in all, with ${Object.entries(BESIDE).filter(([role]) => total.roles[role]).map(([role, noun]) => many(total.roles[role], noun)).join(", ")}`));
  if (data.values) {
    const told = findings.filter((f) => f[4]), bad = told.filter((f) => checks[f[0]][0] !== "note").length, notes = told.length - bad, where = along ? " in the series" : "";
    const said = bad > 0 && told.every(([check, i]) => checks[check][0] === "note" || UNLIKE.test(check) || (/^(nan|inf)$/.test(check) && (unpaired(i) || along?.norm[i]?.includes(UNWELL)))); // by the cards on what is missing, or on NaN
    if (!said) list.push(bad ? card(count(bad), `${bad > 1 ? "errors and warnings" : "error or warning"}${NEW || where}`, "warned") : card("no", `errors or warnings${NEW || where}${notes ? `, ${many(notes, "note")}` : ""}`));
  }
  $("cards").replaceChildren(...list);
};
const draw_share = () => { // where the parameters are, in one line, for the first screen
  const column = columns_of.count, by = new Map();
  for (let i = 0; i < rows; i++) if (here(i)) by.set(data.kind[i], (by.get(data.kind[i]) || 0) + column[i]);
  const kinds = [...by].filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]), colour = (k) => { const i = make("i", { ariaHidden: "true" }); i.style.background = `var(--k${k})`; return i; };
  $("share").hidden = !alone || !kinds.length;
  const strip = make("div", { className: "strip", ariaHidden: "true" }, ...kinds.map(([k, n]) => { const part = colour(k); part.style.flexGrow = n / (tree.count || 1); return part; }));
  const only = (k) => { state.kind = state.kind === k ? -1 : k; restart(); draw_sums(); $("tensors").scrollIntoView(); $("scroll").focus({ preventScroll: true }); };
  const parts = shares(kinds.map(([, n]) => n)), legend = kinds.slice(0, 6).map(([k], at) => { const entry = button("", () => only(k)); entry.append(colour(k), `${data.kinds[k]} `, make("span", {}, parts[at])); return entry; });
  $("share").replaceChildren(strip, make("div", { className: "legend" }, ...legend));
};
const draw_findings = () => {
  $("look").hidden = !data.values && !data.notes.length;
  const nothing = findings.length || !data.values ? [] : [make("p", { className: "soft" }, `Nothing${NEW}: no NaN, infinite or saturated values, no outliers, no dead, constant or duplicate tensors.`)];
  const by = new Map();
  for (const f of findings) put(by, f[0], f);
  $("findings").replaceChildren(...nothing, ...Object.entries(checks).filter(([id]) => by.has(id)).map(([id, [severity, words, limit]]) => {
    const meaning = words.replace("LIMIT", number(limit ?? 0));
    const side = UNLIKE.test(id) ? "" : NEW, list = by.get(id).sort((a, b) => b[4] - a[4]), recent = list.filter((f) => f[4]).length, fresh = (f) => (side && !f[2].endsWith(GONE) && (list.length === 1 || recent < list.length) ? `${f[4] ? NEW : KNOWN} ·` : "");
    const absent = list.some((f) => typeof f[1] === "string"), some = list.slice(0, absent ? 50 : 8);
    const named = (i) => {
      if (typeof i === "string") return make("b", { className: "name" }, i); // not on this page
      const link = button("", () => open_tensor(i), { className: "link name", title: meaning });
      link.append(...breakable(told_name(i)));
      return link;
    };
    if (list.length === 1) return make("p", { className: `badge ${severity}` }, make("b", {}, id), ` ${severity} ·${fresh(list[0])} `, named(list[0][1]), ` ${list[0][2]}`);
    const item = (f) => make("li", {}, named(f[1]), `${fresh(f)} ${f[2]}`);
    const more = list.length > some.length ? [make("li", {}, absent ? `and ${count(list.length - some.length)} more` : button(`All ${count(list.length)} in the table`, () => { state.show = id; restart(); $("scroll").focus(); }, LINK))] : [];
    return make("details", { open: severity !== "note" && list.length <= 8, className: `badge ${severity}` },
      make("summary", {}, make("b", {}, id), ` ${severity} · ${many(list.length, "tensor")}${side ? `, ${recent === list.length ? "" : `${count(recent)} `}${NEW.trim()}` : ""}`), make("p", { className: "small" }, meaning), make("ul", {}, ...some.map(item), ...more));
  }));
};
const draw_notes = () => {
  const item = (title, ...inner) => make("details", {}, make("summary", {}, ...title), ...inner);
  const listed = (names) => make("ul", {}, ...names.map((n) => make("li", {}, n)));
  const reasons = new Set((compared?.left || []).map((t) => t[3])); // of what is listed below
  const [in_a, in_b] = ["in A: ", "in B: "].map((side) => new Set(data.notes.filter(([, text]) => text.startsWith(side)).map(([kind, text, names]) => JSON.stringify([kind, text.slice(6), names]))));
  const notes = data.notes.filter((note) => !hints.includes(note) && !reasons.has(note[1])).flatMap(([kind, text, names, n]) => { // one that holds for both is told once
    const key = JSON.stringify([kind, text.slice(6), names]), both = comparing && in_a.has(key) && in_b.has(key);
    return !both ? [[kind, text, names, n]] : text.startsWith("in A: ") ? [[kind, `in A and B: ${text.slice(6)}`, names, n]] : [];
  });
  $("notes").replaceChildren(...notes.map(([kind, text, names, n]) => {
    const title = [make("b", {}, kind), ` ${text}${n > 1 ? ` (${count(n)})` : ""}`];
    const node = n > 1 ? item(title, make("p", { className: "small" }, names)) : make("p", {}, ...title, n ? `: ${names}` : "");
    node.className = "badge";
    return node;
  }));
  const items = data.ties.length ? [item([`Names of one tensor (${count(data.ties.length)})`], listed(data.ties.slice(0, 200).map((g) => g.join(" = "))))] : [];
  for (const [title, texts] of [["Values beside the tensors", Object.entries(data.beside)], ["Metadata", Object.entries(data.metadata)]]) {
    if (texts.length) items.push(item([`${title} (${count(texts.length)})`], make("dl", {}, ...texts.flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, v)]))));
  }
  $("more").hidden = !items.length;
  $("beside").replaceChildren(...items);
  $("made").replaceChildren(...Object.entries(data.made || {}).filter(([k, v]) => v && k !== "Converter").flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, make("code", {}, v))]));
};
const draw_remains = () => {
  const list = (title, items) => (items.length ? [make("details", { open: items.length <= 20 }, make("summary", {}, `${title} (${count(items.length)})`), make("ul", { tabIndex: 0 }, ...items.slice(0, 2000).map((t) => make("li", {}, t))))] : []);
  const uses = (compared?.rules || []).map(() => 0), why = (t) => `${t[0]}  ${t[1]} ${shape(t[2])}${t[3] ? ` – ${t[3]}` : ""}`;
  for (const r of converted ? compared.rows : []) if (r[0] >= 0) uses[r[0]]++;
  const lists = !converted ? [] : [
    ...list("Rules used", uses.length > TOLD ? compared.rules.map((r, k) => `${r || "no rule: as in the source"}: ${count(uses[k])}`) : []),
    ...list("Source tensors that were left out, with the reason", compared.left.filter((t) => t[3]).map(why)),
    ...list("Source tensors without a partner", compared.left.filter((t) => !t[3]).map(why)),
    ...list("Target tensors without a source", data.names.filter((_, i) => !compared.rows[i][1].length)),
    ...list("Tensors that the conversion gives but the target lacks", compared.missing),
  ];
  $("left").hidden = !lists.length;
  $("rules").replaceChildren(...lists);
};
const draw_units = () => $("units").replaceChildren(...[["count", "Parameters"], ["bytes", "Bytes"]].map(([id, title]) => button(title, () => { state.unit = id; draw_units(); draw_map(); draw_sums(); write(); }, { "aria-pressed": state.unit === id })));

let typing = 0;
$("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { state.q = $("search").value; restart(); }, rows > 20000 ? 120 : 0); });
$("search").addEventListener("keydown", (e) => { if (e.key === "ArrowDown" || e.key === "Enter") { e.preventDefault(); $("scroll").focus(); } });
$("sort").addEventListener("change", () => { state.sort = $("sort").value; state.down = Boolean(columns.find((c) => c.id === state.sort)?.down); restart(); });
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName) && !$("detail").open) { e.preventDefault(); $("search").focus(); }
});
addEventListener("resize", () => { draw_map(); draw_table(true); });
narrow.addEventListener("change", () => draw_table(true));
document.documentElement.style.setProperty("--grid", columns.map((c) => c.width).join(" "));
document.documentElement.style.setProperty("--brief-grid", columns.filter((c) => !c.cls.includes("wide")).map((c) => c.width).join(" "));
const start = () => {
  const wanted = read();
  $("search").value = state.q;
  draw_title(); draw_cards(); draw_share(); draw_changes(); draw_series(); draw_findings(); draw_units(); draw_map(); draw_sums(); draw_depth(); draw_notes(); draw_remains(); select();
  if (wanted >= 0) open_tensor(wanted);
};
addEventListener("hashchange", start);
grow();
start();
document.documentElement.dataset.ready = "yes";
