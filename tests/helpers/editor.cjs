// Asks Taplo's language server, the engine of Even Better TOML, for what an editor proposes.
//   node editor.cjs FOLDER < cases.json
// A case is the text of a file of FOLDER with | where the cursor is; printed is the list of proposals for each.
const { TaploLsp } = require(process.argv[2] + "/node_modules/@taplo/lsp");
const fs = require("fs");
const { fileURLToPath, pathToFileURL } = require("url");

const folder = process.argv[2];
const path = (address) => (address.startsWith("file:") ? fileURLToPath(address) : "/nowhere");

async function main() {
  const waiting = new Map();
  const environment = {
    now: () => new Date(), envVar: () => undefined, envVars: () => [], stdErrAtty: () => false, stdin: process.stdin,
    stdout: process.stdout, stderr: async (bytes) => bytes.length, glob: () => [],
    readFile: async (file) => new Uint8Array(fs.readFileSync(file)), writeFile: async () => {}, urlToFilePath: path,
    isAbsolute: (file) => file.startsWith("/"), cwd: () => folder, findConfigFile: () => undefined,
  };
  const server = await TaploLsp.initialize(environment, {
    onMessage(message) {
      if (waiting.has(message.id)) waiting.get(message.id)(message.result);
      else if (message.method && message.id !== undefined) server.send({ jsonrpc: "2.0", id: message.id, result: [{}] });
    },
  });
  const tell = (method, params) => server.send({ jsonrpc: "2.0", method, params });
  const ask = (method, params) =>
    new Promise((resolve) => {
      const id = waiting.size + 1;
      waiting.set(id, resolve);
      server.send({ jsonrpc: "2.0", id, method, params });
    });
  const root = pathToFileURL(folder).href;
  await ask("initialize", {
    capabilities: {}, rootUri: root, workspaceFolders: [{ uri: root, name: "files" }],
    initializationOptions: { configurationSection: "evenBetterToml" },
  });
  tell("initialized", {});
  const found = [];
  for (const [number, text] of JSON.parse(fs.readFileSync(0, "utf-8")).entries()) {
    const uri = `${root}/case-${number}.toml`;
    const before = text.slice(0, text.indexOf("|")).split("\n");
    tell("textDocument/didOpen", { textDocument: { uri, languageId: "toml", version: 1, text: text.replace("|", "") } });
    const place = { line: before.length - 1, character: before.at(-1).length };
    let answer = null; // nothing, until the schema is loaded
    for (let tries = 0; tries < 100 && !answer?.length; tries++) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      answer = await ask("textDocument/completion", { textDocument: { uri }, position: place });
      answer = answer?.items ?? answer;
    }
    found.push((answer ?? []).map((one) => one.label));
  }
  console.log(JSON.stringify(found));
  process.exit(0);
}

main();
