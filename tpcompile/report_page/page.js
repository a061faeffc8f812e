(() => {
  "use strict";
  const search = document.getElementById("search");
  const how = document.getElementById("how");
  const sections = [...document.querySelectorAll("section.searched")];
  const collator = new Intl.Collator("en", { numeric: true });
  const texts = new Map(); // row → what is searched
  let sorted = ""; // "weights:bytes:down"
  document.documentElement.classList.add("js");

  const textOf = (row) => {
    if (!texts.has(row)) {
      texts.set(row, [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
    }
    return texts.get(row);
  };

  /** Every word must occur; "*" stands for anything within a word. */
  const matcher = (wanted) => {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    const tests = words.map((word) => {
      if (!word.includes("*")) {
        return (text) => text.includes(word);
      }
      const pattern = new RegExp(word.replace(/[.+?^${}()|[\]\\]/g, "\\$&").replace(/\*+/g, "\\S*"));
      return (text) => pattern.test(text);
    });
    return (text) => tests.every((test) => test(text));
  };

  const filter = () => {
    const matches = matcher(search.value);
    const asked = search.value.trim() !== "" || how.value !== "";
    for (const section of sections) {
      const table = section.querySelector("table");
      const rows = table.tBodies[0].rows;
      const lies = table.id === "weights" ? how.value : "";
      let count = 0;
      for (const row of rows) {
        const shown = (!lies || row.dataset.how === lies) && matches(textOf(row));
        row.hidden = !shown;
        count += shown ? 1 : 0;
      }
      section.querySelector(".found").textContent = asked ? `${count} of ${rows.length}` : `${rows.length}`;
    }
  };

  const sort = (header, down) => {
    const table = header.closest("table");
    const body = table.tBodies[0];
    const place = header.cellIndex;
    const numbers = header.classList.contains("n");
    const keyed = [...body.rows].map((row) => {
      const cell = row.cells[place];
      return [numbers ? Number(cell.dataset.v ?? -Infinity) : cell.textContent, row];
    });
    const order = numbers ? (a, b) => a[0] - b[0] : (a, b) => collator.compare(a[0], b[0]);
    keyed.sort((a, b) => (down ? order(b, a) : order(a, b)));
    body.append(...keyed.map(([, row]) => row));
    for (const other of table.tHead.rows[0].cells) {
      other.removeAttribute("aria-sort");
    }
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
  };

  /** The page's address says what is searched and sorted, to be shared. */
  const remember = () => {
    const state = new URLSearchParams();
    for (const [key, value] of [["search", search.value], ["how", how.value], ["sort", sorted]]) {
      if (value) {
        state.set(key, value);
      }
    }
    history.replaceState(null, "", `#${state}`);
  };

  const follow = () => {
    if (!location.hash.includes("=")) {
      return;
    }
    const state = new URLSearchParams(location.hash.slice(1));
    search.value = state.get("search") ?? "";
    how.value = state.get("how") ?? "";
    how.value = how.selectedIndex < 0 ? "" : how.value;
    const [id, key, direction] = (state.get("sort") ?? "").split(":");
    const headers = [...(document.getElementById(id)?.tHead?.rows[0].cells ?? [])];
    const header = headers.find((found) => found.dataset.key === key);
    if (header) {
      sort(header, direction === "down");
      sorted = state.get("sort");
    }
    filter();
    document.getElementById("dimensions").scrollIntoView();
  };

  for (const header of document.querySelectorAll("table[id] thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    button.addEventListener("click", () => {
      const before = header.getAttribute("aria-sort");
      const down = before ? before === "ascending" : header.classList.contains("n");
      sort(header, down);
      sorted = `${header.closest("table").id}:${header.dataset.key}:${down ? "down" : "up"}`;
      remember();
    });
  }

  // Bars and boxes: one stop for Tab in each group, arrow keys within it; what one is stands below.
  for (const group of document.querySelectorAll("[role=group]")) {
    const buttons = [...group.querySelectorAll("button")];
    const told = group.closest("main > section").querySelector(".told-here");
    if (buttons.length) {
      buttons[0].tabIndex = 0;
    }
    const tell = (event) => {
      const button = event.target.closest("button");
      if (button) {
        told.textContent = button.title;
        told.classList.add("now");
      }
    };
    group.addEventListener("pointerover", tell);
    group.addEventListener("focusin", tell);
    group.addEventListener("keydown", (event) => {
      const at = buttons.indexOf(document.activeElement);
      const steps = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 };
      const next = buttons[steps[event.key]];
      if (next) {
        event.preventDefault();
        buttons[at].tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
    });
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-find]");
      if (button) {
        search.value = button.dataset.find;
        filter();
        remember();
        document.getElementById(button.classList.contains("communication") ? "sent" : "weights-all").scrollIntoView();
      }
    });
  }

  search.addEventListener("input", () => { filter(); remember(); });
  how.addEventListener("change", () => { filter(); remember(); });
  window.addEventListener("hashchange", follow);
  filter();
  follow();
})();
