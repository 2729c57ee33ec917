// --- the summary ---
const card = (n, text, cls = "") => make("div", { className: cls }, make("b", {}, n), text);
const draw_cards = () => {
  const total = data.totals, kinds = new Map(), list = [];
  for (let i = 0; i < rows; i++) kinds.set(kind_of_change(i), (kinds.get(kind_of_change(i)) || 0) + 1);
  const only = (kinds.get("only_a") || 0) + (kinds.get("only_b") || 0), differing = data.names.filter((_, i) => changed(i)).length;
  if (comparing) {
    list.push(card(`${count(differing - only)} of ${count(rows - only)}`, "common tensors changed"), card(count(kinds.get("equal") || 0), "equal"));
    list.push(card(`${count(kinds.get("only_a") || 0)} / ${count(kinds.get("only_b") || 0)}`, "only before / only after"));
    const most = Math.max(...data.names.map((_, i) => measure("change", i) ?? 0));
    if (data.values) list.push(card(change_text(most), "largest change of a tensor"));
  } else if (converted) list.push(card(differing ? count(differing) : "none", differing === 1 ? "tensor is not what the conversion gives" : "tensors are not what the conversion gives", differing ? "warned" : ""));
  if (!comparing) list.push(card(count(total.tensors), total.tensors === 1 ? "tensor" : "tensors"), card(bytes(total.bytes), "in all"), card(count(total.parameters), "parameters in weights"));
  if (!compared && total.all !== total.parameters) list.push(card(count(total.all), "with optimizer slots and state"));
  if (data.values && !compared) {
    const bad = findings.filter((f) => checks[f[0]][0] !== "note").length;
    list.push(card(bad ? count(bad) : "none", bad === 1 ? "finding to look at" : "findings to look at", bad ? "warned" : ""));
  }
  $("cards").replaceChildren(...list);
};
const draw_findings = () => {
  $("look").hidden = !data.values;
  if (!findings.length) return $("findings").replaceChildren(make("p", { className: "soft" }, "Nothing: no NaN, infinite or saturated values, no outliers, no dead, constant or duplicate tensors."));
  const by = new Map();
  for (const f of findings) by.set(f[0], [...(by.get(f[0]) || []), f]);
  $("findings").replaceChildren(...[...by].map(([id, list]) => {
    const [severity, title, meaning] = checks[id], some = list.slice(0, 8);
    const named = (i) => {
      const link = button("", () => open_tensor(i), { className: "link name", title: meaning });
      link.append(...breakable(data.names[i] || "(empty)"));
      return link;
    };
    if (list.length === 1) return make("p", { className: `badge ${severity}` }, make("b", {}, title), ` ${severity} · `, named(list[0][1]), ` ${list[0][2]}`);
    const item = ([, i, text]) => make("li", {}, named(i), ` ${text}`);
    const more = list.length > some.length ? [make("li", {}, button(`All ${count(list.length)} in the table`, () => { state.show = id; restart(); $("scroll").focus(); }, { className: "link" }))] : [];
    return make("details", { open: severity !== "note" && list.length <= 8, className: `badge ${severity}` },
      make("summary", {}, make("b", {}, title), ` ${severity} · ${many(list.length, "tensor")}`), make("p", { className: "small" }, meaning), make("ul", {}, ...some.map(item), ...more));
  }));
};
const draw_changes = () => {
  const list = data.names.map((_, i) => i).filter((i) => changed(i) && rank(i) > 0).sort((a, b) => rank(b) - rank(a)).slice(0, 8);
  $("changes").hidden = !comparing || !data.values || !list.length;
  const most = Math.max(...list.map((i) => measure("change", i) ?? 0));
  $("ranked").replaceChildren(...list.map((i) => {
    const change = measure("change", i);
    const told = `${measure("unpaired", i) ? `${many(measure("unpaired", i), "value")} became NaN or infinite · ` : ""}${change === null ? "" : `${change_text(change)} · `}max |d| ${number(measure("abs", i))}`;
    return bar(data.names[i], change ?? 0, most, measure("unpaired", i) ? "var(--warn)" : "", told, () => open_tensor(i), false);
  }));
};
const draw_notes = () => {
  const item = (kind, text, ...inner) => make("details", {}, make("summary", {}, make("b", {}, kind), text), ...inner);
  const listed = (names) => make("ul", {}, ...names.map((n) => make("li", {}, n)));
  const metadata = Object.entries(data.metadata);
  const items = data.notes.map(([kind, text, names, n]) => item(kind, `: ${text}${n > 1 ? ` (${count(n)})` : ""}`, listed(n > names.length ? [...names, "…"] : names)));
  if (data.ties.length) items.push(item("tied", `: names of one tensor (${count(data.ties.length)})`, listed(data.ties.slice(0, 200).map((g) => g.join(" = ")))));
  if (metadata.length) items.push(item("metadata", ` (${metadata.length})`, make("dl", {}, ...metadata.flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, v)]))));
  $("more").hidden = !items.length;
  $("notes").replaceChildren(...items);
};
const draw_remains = () => {
  $("left").hidden = !converted;
  if (!converted) return;
  const list = (title, items) => (items.length ? [make("details", { open: items.length <= 20 }, make("summary", {}, `${title} (${count(items.length)})`), make("ul", {}, ...items.slice(0, 2000).map((t) => make("li", {}, t))))] : []);
  const uses = compared.rules.map(() => 0);
  for (const r of compared.rows) if (r[0] >= 0) uses[r[0]]++;
  const why = (t) => `${t[0]}  ${t[1]} ${shape(t[2])}${t[3] ? ` – ${t[3]}` : ""}`;
  $("rules").replaceChildren(
    ...list("Rules used", compared.rules.map((r, k) => `${r || "no rule: as in the source"}: ${count(uses[k])}`)),
    ...list("Source tensors that were left out, with the reason", compared.left.filter((t) => t[3]).map(why)),
    ...list("Source tensors without a partner", compared.left.filter((t) => !t[3]).map(why)),
    ...list("Target tensors without a source", data.names.filter((_, i) => !compared.rows[i][1].length)),
    ...list("Tensors that the conversion gives but the target lacks", compared.missing),
  );
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
  draw_cards(); draw_changes(); draw_findings(); draw_units(); draw_map(); draw_sums(); draw_depth(); draw_notes(); draw_remains(); select();
  if (wanted >= 0) open_tensor(wanted);
};
addEventListener("hashchange", start);
grow();
start();
document.documentElement.dataset.ready = "yes";
