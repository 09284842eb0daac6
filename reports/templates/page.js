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

  // One stop of the tab key a table; arrows go from number to number.
  for (const table of document.querySelectorAll("table")) {
    table.querySelectorAll("button.n").forEach((button, place) => { button.tabIndex = place ? -1 : 0; });
  }
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
      if (next) {
        button.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
        return;
      }
    }
  });
})();
