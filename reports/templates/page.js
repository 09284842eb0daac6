"use strict";
(() => {
  const register = JSON.parse(document.getElementById("register").textContent);
  const places = new Map(register.ids.map((id, place) => [id, place]));
  const dialog = document.getElementById("provenance");
  const element = (name, text, properties) => Object.assign(document.createElement(name), { textContent: text }, properties);

  const value = (text) => {
    const cell = element("dd", "");
    if (places.has(text)) {
      const button = element("button", text, { type: "button", className: "plainbutton" });
      button.addEventListener("click", () => { show(text, [places.get(text)], ""); });
      cell.append(button);
    } else {
      cell.textContent = text;
    }
    return cell;
  };

  const describe = (place) => {
    const list = dialog.querySelector("dl");
    list.replaceChildren(element("dt", "Id"), element("dd", register.ids[place]));
    if (register.files[place] !== null) {
      const path = `${register.folder}/${register.words[register.files[place]].replace("*", register.ids[place])}`;
      const link = element("a", path.split("/").pop(), { href: path.split("/").map(encodeURIComponent).join("/") });
      const cell = element("dd", "");
      cell.append(link);
      list.append(element("dt", "Record file"), cell);
    }
    const fields = register.records[place];
    for (let index = 0; index < fields.length; index += 2) {
      const text = register.words[fields[index + 1]];
      if (text) { list.append(element("dt", register.words[fields[index]]), value(text)); }
    }
    for (const button of dialog.querySelectorAll(".ids button")) {
      if (button.textContent === register.ids[place]) { button.setAttribute("aria-current", "true"); } else { button.removeAttribute("aria-current"); }
    }
  };

  const show = (title, members, how) => {
    dialog.querySelector("h2").textContent = title;
    const count = members.length ? `${members.length} record${members.length === 1 ? "" : "s"}` : "";
    dialog.querySelector(".how").textContent = [how, count].filter(Boolean).join("; ");
    dialog.querySelector(".ids").replaceChildren(...members.map((place) => {
      const button = element("button", register.ids[place], { type: "button", className: "plainbutton" });
      button.addEventListener("click", () => { describe(place); });
      return button;
    }));
    if (members.length) { describe(members[0]); } else { dialog.querySelector("dl").replaceChildren(); }
    if (!dialog.open) { dialog.showModal(); }
    dialog.scrollTop = 0;
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.n");
    if (!button) { return; }
    const [title, how, list] = register.numbers[button.dataset.n];
    show(`${register.words[title]} (${button.textContent})`, register.lists[list], register.words[how]);
  });
  dialog.querySelector(".close").addEventListener("click", () => { dialog.close(); });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) { dialog.close(); } });

  // One stop of the tab key a table; arrows go from number to number. Lines that a filter hides have none.
  const setStops = (table) => {
    const buttons = [...table.querySelectorAll("button.n")];
    const stop = buttons.find((button) => !button.closest("[hidden]"));
    for (const button of buttons) { button.tabIndex = button === stop ? 0 : -1; }
  };
  document.querySelectorAll("table").forEach(setStops);
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  document.addEventListener("keydown", (event) => {
    const button = event.target.closest("table button.n");
    if (!button || !(event.key in moves)) { return; }
    event.preventDefault();
    const [down, right] = moves[event.key];
    const cell = button.closest("td, th");
    const rows = [...button.closest("table").rows];
    let row = rows.indexOf(cell.parentElement) + down;
    let column = cell.cellIndex + right;
    for (; rows[row] && column >= 0 && column < rows[row].cells.length; row += down, column += right) {
      const next = rows[row].cells[column].querySelector("button.n");
      if (next && !rows[row].hidden) {
        button.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
        return;
      }
    }
  });

  const signed = (number, digits) => `${number > 0 ? "+" : ""}${number.toFixed(digits).replace("-", "−")}`;

  // A panel with the mean difference and its interval, and the values of both variants by seed.
  const panelOf = ([variant, base], about, [, , , reason, verdict, key, mean, interval, seeds], sign) => {
    const panel = element("figure", "", { className: "panel" });
    const [words, , , digits] = about;
    const caption = element("figcaption", "");
    caption.append(element("strong", words));
    panel.append(caption);
    if (reason) { panel.append(element("p", reason, { className: "soft" })); return panel; }
    const text = sign > 0 ? mean : signed(-Number(mean.replace("−", "-")), digits);
    const button = element("button", text, { type: "button", className: "n" });
    button.dataset.n = key;
    button.setAttribute("aria-haspopup", "dialog");
    caption.append(button);
    const lines = seeds.map(([seed, ours, theirs]) => (sign > 0 ? [seed, theirs, ours] : [seed, ours, theirs]));
    const table = element("table", "");
    table.append(...[["seed", base, variant, "difference"], ...lines.map(([seed, from, to]) => [seed, from.toFixed(digits), to.toFixed(digits), signed(to - from, digits)])].map((cells, row) => {
      const line = element("tr", "");
      line.append(...cells.map((cell) => element(row ? "td" : "th", cell)));
      return line;
    }));
    const range = interval && (sign > 0 ? interval : [-interval[1], -interval[0]]).map((end) => signed(end, digits)).join(" to ");
    const told = sign > 0 && verdict ? `; verdict: ${verdict}` : "";
    panel.append(element("p", `${range ? `95 % over seeds: ${range}` : "one seed: no interval"}${told}`, { className: "soft" }), table);
    return panel;
  };

  for (const section of document.querySelectorAll("section.study[id]")) {
    const field = (name) => section.querySelector(`.filters [name=${name}]`);
    const chosen = (name) => field(name)?.value ?? "";
    const compare = () => {
      const { arms, measured, pairs } = register.pairs[section.id];
      const [variant, base] = [Number(chosen("variant")), Number(chosen("base"))];
      const sign = variant > base ? 1 : -1;
      const own = pairs.filter(([ours, theirs, place]) => Math.max(variant, base) === ours && Math.min(variant, base) === theirs
        && ["readout", "corpus"].every((name, at) => !chosen(name) || !measured[place][at + 1] || measured[place][at + 1] === chosen(name)));
      const names = [arms[variant][0], arms[base][0]];
      section.querySelector(".pairs").replaceChildren(...own.map((pair) => panelOf(names, measured[pair[2]], pair, sign)));
      const [ours, theirs] = [arms[variant][1], arms[base][1]];
      section.querySelector(".step").textContent = variant === base ? "Choose two variants." : ours === null || theirs === null ? {{ ((published_as | capitalized) ~ " prints no average of one of them.") | tojson }}
        : `{{ (published_as | capitalized | tojson)[1:-1] }}’s step, one seed: ${signed(ours - theirs, 1)} points of the GLUE average (${names[1]} ${theirs.toFixed(1)}, ${names[0]} ${ours.toFixed(1)}).`;
    };
    const filter = () => {
      const lines = [...section.querySelectorAll("tr[data-readout]")];
      for (const line of lines) {
        line.hidden = ["readout", "corpus", "rate"].some((name) => chosen(name) && line.dataset[name] && line.dataset[name] !== chosen(name));
      }
      section.querySelectorAll("table:has([data-readout])").forEach(setStops);
      section.querySelector(".filters output").textContent = `${lines.filter((line) => !line.hidden).length} of ${lines.length} lines of the tables below`;
      if (field("variant")) { compare(); }
    };
    if (section.querySelector(".filters")) {
      section.querySelectorAll(".filters").forEach((form) => { form.addEventListener("change", filter); });
      filter();
    }
  }
})();
