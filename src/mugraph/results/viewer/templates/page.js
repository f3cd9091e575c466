"use strict";
for (const text of document.querySelectorAll("pre.source, pre.graph")) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected: copy it with the keyboard";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  text.before(button);
}
