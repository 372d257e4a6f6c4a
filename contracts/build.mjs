// Compiles the contracts with the pinned solc and writes ABI and bytecode to build/, one file a contract and stage count.
//
//   node build.mjs            write build/*.json
//   node build.mjs --check    write nothing; exit 1 when build/ is not what the sources say
//
// The bytecode holds no digest of the sources, so a changed comment changes nothing; a changed compiler, setting or line
// of code does.

import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const require = createRequire(import.meta.url);
const HERE = path.dirname(fileURLToPath(import.meta.url));
const OUT = path.join(HERE, "build");
const STAGE_COUNTS = [3, 2, 1];
const COORDINATORS = ["SwarmCoordinator", "LockedSwarmCoordinator"];
const PROXY = "@openzeppelin/contracts/proxy/ERC1967/ERC1967Proxy.sol";
const CODE_BYTES_MAX = 24576; // EIP-170: a chain accepts no larger contract

const SETTINGS = {
  optimizer: { enabled: true, runs: 1_000_000 },
  evmVersion: "cancun",
  metadata: { bytecodeHash: "none", appendCBOR: false },
  outputSelection: {
    "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object", "storageLayout"] },
  },
};

function read(name) {
  const place = name.startsWith("@") ? path.join(HERE, "node_modules", name) : path.join(HERE, name);
  return fs.readFileSync(place, "utf8");
}

function findImport(name) {
  try {
    return { contents: read(name) };
  } catch (error) {
    return { error: `${name}: ${error.message}` };
  }
}

/** The text of StageCount.sol for a build with so many stages. */
function stageCountSource(stages) {
  const text = read("StageCount.sol");
  const changed = text.replace(/STAGE_COUNT = \d+;/, `STAGE_COUNT = ${stages};`);
  if (!changed.includes(`STAGE_COUNT = ${stages};`)) throw new Error("StageCount.sol sets no STAGE_COUNT");
  return changed;
}

function compile(solc, stages) {
  const sources = { "StageCount.sol": { content: stageCountSource(stages) }, [PROXY]: { content: read(PROXY) } };
  for (const name of COORDINATORS) sources[`${name}.sol`] = { content: read(`${name}.sol`) };
  const input = { language: "Solidity", sources, settings: SETTINGS };
  const output = JSON.parse(solc.compile(JSON.stringify(input), { import: findImport }));
  const complaints = (output.errors ?? []).map((entry) => entry.formattedMessage);
  if (complaints.length) throw new Error(complaints.join("\n")); // a warning fails the build too
  return output.contracts;
}

/** What is kept of a compiled contract. Bytecode is hex with 0x, ready to deploy. */
function artefact(solc, name, stages, compiled) {
  const { abi, evm, storageLayout } = compiled;
  const size = evm.deployedBytecode.object.length / 2;
  if (size > CODE_BYTES_MAX) throw new Error(`${name}: ${size} bytes of code, a chain takes ${CODE_BYTES_MAX}`);
  const { optimizer, evmVersion } = SETTINGS;
  const storage = storageLayout.storage.map(({ label, slot, offset, type }) => ({ label, slot, offset, type: typeName(type) }));
  return {
    contract: name,
    ...(stages === null ? {} : { stages }),
    compiler: { solc: solc.version(), optimizerRuns: optimizer.runs, evmVersion },
    codeSizeBytes: size,
    abi,
    storage,
    bytecode: `0x${evm.bytecode.object}`,
  };
}

/** solc numbers its types by position in the syntax tree, which any edit changes. */
function typeName(type) {
  return type.replace(/\)\d+_/g, ")_");
}

function buildAll() {
  const solc = require("solc");
  const files = new Map();
  for (const stages of STAGE_COUNTS) {
    const contracts = compile(solc, stages);
    for (const name of COORDINATORS) {
      files.set(`${name}-${stages}.json`, artefact(solc, name, stages, contracts[`${name}.sol`][name]));
    }
    files.set("ERC1967Proxy.json", artefact(solc, "ERC1967Proxy", null, contracts[PROXY].ERC1967Proxy));
  }
  return new Map([...files].map(([name, content]) => [name, `${JSON.stringify(content, null, 1)}\n`]));
}

/** The names of the files in build/ that differ from `files`, are missing or should not be there. */
function differences(files) {
  const present = fs.existsSync(OUT) ? fs.readdirSync(OUT) : [];
  const stale = [...files].filter(([name, text]) => !present.includes(name) || fs.readFileSync(path.join(OUT, name), "utf8") !== text);
  return [...stale.map(([name]) => name), ...present.filter((name) => !files.has(name))];
}

function main() {
  const files = buildAll();
  const differing = differences(files);
  if (process.argv.includes("--check")) {
    if (differing.length) {
      console.error(`contracts/build is not what the sources say: ${differing.join(", ")}; run \`make contracts\` and commit`);
      process.exit(1);
    }
    console.log(`contracts/build is what the sources say: ${files.size} files`);
    return;
  }
  fs.mkdirSync(OUT, { recursive: true });
  for (const name of differing.filter((name) => !files.has(name))) fs.rmSync(path.join(OUT, name));
  for (const [name, text] of files) fs.writeFileSync(path.join(OUT, name), text);
  for (const [name, text] of files) console.log(`${name.padEnd(30)}${JSON.parse(text).codeSizeBytes} bytes of code`);
}

try {
  main();
} catch (error) {
  const missing = error.code === "MODULE_NOT_FOUND" || error.code === "ENOENT";
  console.error(missing ? `${error.message}\nrun \`make contracts-setup\` first: it installs the compiler` : error.message);
  process.exit(1);
}
