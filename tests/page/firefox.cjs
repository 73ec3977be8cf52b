// Lets Playwright drive Firefox ESR over WebDriver BiDi: node loads this before Playwright's driver (NODE_OPTIONS).
// Firefox 153 lacks a command that Playwright 1.65 sends for each context; its failure is ignored.
const { readFileSync } = require("node:fs");
const Module = require("node:module");

const load = Module._extensions[".js"];
Module._extensions[".js"] = (module, file) => {
  if (!file.endsWith("coreBundle.js")) return load(module, file);
  const command = '("emulation.setMediaFeaturesOverride"';
  return module._compile(readFileSync(file, "utf8").replaceAll(`.send${command}`, `.sendMayFail${command}`), file);
};
