// Builds the page into one script and one style, which are committed beside the Python that writes pages.
import { build } from "esbuild";

const out = new URL("../src/headway/report/page/", import.meta.url).pathname;
const common = { bundle: true, minify: true, target: "es2022", charset: "ascii", legalComments: "none" };
const worker = await build({ ...common, entryPoints: ["src/worker.ts"], write: false });
await build({
  ...common,
  entryPoints: ["src/page.tsx"],
  outfile: `${out}page.js`,
  jsx: "automatic",
  jsxImportSource: "preact",
  define: { WORKER: JSON.stringify(worker.outputFiles[0].text) },
});
await build({ ...common, entryPoints: ["src/style.css"], outfile: `${out}page.css` });
