// Makes node's standard library work inside an AppContainer. node loads this file before the
// server, and also in workers and child nodes. No wall depends on this file: a server that removes
// it only loses the repairs.
//
// - realpath: inside, Windows denies GetFinalPathNameByHandleW, and node's own walk starts at
//   `C:\`, which cannot be opened. The version here treats a directory that cannot be opened as a
//   plain directory.
// - Pipes to children: libuv before its change 5181 uses names outside `\\.\pipe\LOCAL\`, mistakes
//   the denial for a name in use, and tries the next name forever.
// - "ignore": some builds of Windows do not let an AppContainer open NUL.
"use strict";
const childProcess = require("child_process");
const fs = require("fs");
const net = require("net");
const os = require("os");
const path = require("path");
const { PassThrough, pipeline } = require("stream");
const { fileURLToPath } = require("url");
const { threadId } = require("worker_threads");

const LOADED = Symbol.for("corral.node_preload");
const DENIED = new Set(["EACCES", "EPERM"]);
const MAX_LINKS = 40;
const { lstatSync, readlinkSync } = fs;

function isLink(name) {
  try {
    return lstatSync(name).isSymbolicLink();
  } catch (error) {
    if (DENIED.has(error.code)) return false;
    throw error;
  }
}

function firstLink(name) {
  let here = path.parse(name).root;
  for (const part of name.slice(here.length).split(path.sep).filter(Boolean)) {
    here = path.join(here, part);
    if (isLink(here)) return here;
  }
  return "";
}

function findRealPath(input) {
  let name = input instanceof URL ? fileURLToPath(input) : input;
  name = path.resolve(Buffer.isBuffer(name) ? name.toString() : name);
  for (let links = 0; links <= MAX_LINKS; links++) {
    lstatSync(name); // throws if there is no such file, or if it is not granted
    const link = firstLink(name);
    if (!link) return name;
    name = path.resolve(path.dirname(link), readlinkSync(link), path.relative(link, name));
  }
  throw Object.assign(new Error(`ELOOP: too many links, realpath '${input}'`), { code: "ELOOP" });
}

function realpathSync(input, options) {
  const encoding = typeof options === "string" ? options : options?.encoding;
  const found = findRealPath(input);
  if (!encoding || encoding === "utf8" || encoding === "utf-8") return found;
  const bytes = Buffer.from(found);
  return encoding === "buffer" ? bytes : bytes.toString(encoding);
}

function realpath(input, options, callback) {
  const done = typeof options === "function" ? options : callback;
  const encoding = typeof options === "function" ? undefined : options;
  realpathPromise(input, encoding).then((found) => process.nextTick(done, null, found),
    (error) => process.nextTick(done, error));
}

async function realpathPromise(input, options) {
  return realpathSync(input, options);
}

let number = 0;
const uniqueName = () => `corral-${process.pid}-${threadId}-${number++}`;

let nul;
function isNulOpen() {
  if (nul === undefined) {
    try {
      fs.closeSync(fs.openSync("\\\\.\\NUL", "r+"));
      nul = true;
    } catch {
      nul = false;
    }
  }
  return nul;
}

function completeStdio(stdio) {
  const slots = Array.isArray(stdio) ? [...stdio] : Array(3).fill(stdio || "pipe");
  while (slots.length < 3) slots.push("pipe");
  return slots.map((slot, index) => slot ?? (index < 3 ? "pipe" : "ignore"));
}

const isPiped = (slot) => slot === "pipe" || slot === "overlapped";
const isReplaced = (slot, index) =>
  isPiped(slot) || (slot === "ignore" && index < 3 && !isNulOpen());

// Returns the child's end of a new pipe as a descriptor, and the socket at the other end as a
// promise.
function openPipe() {
  const server = net.createServer();
  const socket = new Promise((resolve, reject) =>
    server.once("connection", resolve).once("error", reject));
  socket.catch(() => {}).finally(() => server.close(() => {}));
  const name = `\\\\.\\pipe\\LOCAL\\${uniqueName()}`;
  server.unref().listen(name);
  try {
    return { descriptor: fs.openSync(name, "r+"), socket };
  } catch (error) {
    server.close(() => {});
    throw error;
  }
}

function discard(index, socket) {
  socket.on("error", () => {});
  if (index === 0) socket.destroy();
  else socket.unref().resume();
}

// Returns the stream for the caller of `spawn`, who gets it even before the socket is connected.
function attachStream(child, index, socketPromise) {
  const stream = new PassThrough();
  stream.ref = stream.unref = () => stream;
  if (index > 0 && child.pid) {
    child._closesNeeded++;
    stream.once("close", () => {
      child._closesGot++;
      if (child._closesGot === child._closesNeeded)
        child.emit("close", child.exitCode, child.signalCode);
    });
  }
  socketPromise.then((socket) => {
    if (index === 0) pipeline(stream, socket.resume(), () => {});
    else pipeline(socket, stream, () => {});
  }, (error) => stream.destroy(error));
  return stream;
}

const { spawn } = childProcess.ChildProcess.prototype;
function spawnWithPipes(options) {
  const slots = completeStdio(options.stdio);
  if (slots.includes("ipc")) {
    const error = new Error("child_process.fork and 'ipc' do not work in an AppContainer");
    throw Object.assign(error, { code: "ENOTSUP" });
  }
  const pipes = new Map();
  try {
    slots.forEach((slot, index) => isReplaced(slot, index) && pipes.set(index, openPipe()));
    const stdio = slots.map((slot, index) => pipes.get(index)?.descriptor ?? slot);
    const result = spawn.call(this, { ...options, stdio });
    this.stdio ??= [];
    for (const [index, { socket }] of pipes) {
      if (!isPiped(slots[index])) {
        socket.then((end) => discard(index, end), () => {});
        continue;
      }
      this.stdio[index] = attachStream(this, index, socket);
      if (index < 3) this[["stdin", "stdout", "stderr"][index]] = this.stdio[index];
    }
    return result;
  } finally {
    // The child has its own copies of these descriptors. As long as one is open here too, the
    // stream does not end.
    for (const { descriptor } of pipes.values()) fs.closeSync(descriptor);
  }
}

// During a synchronous call no pipe can be read or written, so the child gets files instead.
const originalSpawnSync = childProcess.spawnSync;
function spawnSync(file, args, options) {
  if (!Array.isArray(args)) [args, options] = [[], args];
  const { input, ...others } = options ?? {};
  const slots = completeStdio(others.stdio);
  const files = new Map();
  try {
    slots.forEach((slot, index) => {
      if (!isReplaced(slot, index)) return;
      const name = path.join(os.tmpdir(), uniqueName());
      fs.writeFileSync(name, index === 0 && input != null ? input : "");
      files.set(index, { name, descriptor: fs.openSync(name, index === 0 ? "r" : "r+") });
    });
    others.stdio = slots.map((slot, index) => files.get(index)?.descriptor ?? slot);
    const done = originalSpawnSync(file, args, others);
    done.output ??= slots.map(() => null);
    for (const [index, { name }] of files) {
      if (index === 0 || !isPiped(slots[index])) continue;
      const found = fs.readFileSync(name);
      const encoding = others.encoding;
      done.output[index] = encoding && encoding !== "buffer" ? found.toString(encoding) : found;
    }
    [, done.stdout, done.stderr] = done.output;
    return done;
  } finally {
    for (const { name, descriptor } of files.values()) {
      fs.closeSync(descriptor);
      fs.unlinkSync(name);
    }
  }
}

function checkDone(done, command, options) {
  if (!options?.stdio && done.stderr) process.stderr.write(done.stderr);
  if (!done.error && done.status === 0) return done.stdout;
  const error = done.error ?? new Error(`Command failed: ${command}\n${done.stderr ?? ""}`);
  throw Object.assign(error, done);
}

function execFileSync(file, args, options) {
  if (!Array.isArray(args)) [args, options] = [[], args];
  return checkDone(spawnSync(file, args, options), [file, ...args].join(" "), options);
}

function execSync(command, options) {
  const done = spawnSync(command, [], { ...options, shell: options?.shell || true });
  return checkDone(done, command, options);
}

if (!globalThis[LOADED]) {
  globalThis[LOADED] = true;
  fs.realpath = Object.assign(realpath, { native: realpath });
  fs.realpathSync = Object.assign(realpathSync, { native: realpathSync });
  fs.promises.realpath = realpathPromise;
  childProcess.ChildProcess.prototype.spawn = spawnWithPipes;
  Object.assign(childProcess, { spawnSync, execFileSync, execSync });
  require("module").syncBuiltinESMExports();
}
