// Shows `repairgym view` in a panel. The pages are those of the server; this file starts it and frames it.
const vscode = require("vscode");

const ORIGINS = 'embed_from=["vscode-file://vscode-app", "vscode-webview://*"]';
const servers = new Map(); // folder -> promise of {process, address}

function start(folder) {
  const { spawn } = require("child_process"); // absent in an editor without processes, which sets repairgym.viewer
  const command = vscode.workspace.getConfiguration("repairgym").get("command");
  const root = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  const process = spawn(command, ["view", folder, "--port", "0", ORIGINS], { cwd: root });
  return new Promise((resolve, reject) => {
    let printed = "", problem = "";
    process.stdout.on("data", (data) => {
      printed += data;
      if (printed.includes("\n")) resolve({ process, address: printed.split(/\s/)[0] });
    });
    process.stderr.on("data", (data) => (problem += data));
    process.on("error", (error) => reject(new Error(`${command} cannot be started (${error.message}); set repairgym.command`)));
    process.on("exit", (code) => {
      servers.delete(folder);
      reject(new Error(problem.trim().replace(/^error: /, "") || `${command} ended with status ${code}`));
    });
  });
}

async function addressOf(folder) {
  const running = vscode.workspace.getConfiguration("repairgym").get("viewer");
  if (running) return running;
  if (!folder) throw new Error("open a folder with runs, or set repairgym.viewer");
  if (!servers.has(folder)) {
    servers.set(folder, start(folder));
    servers.get(folder).catch(() => servers.delete(folder));
  }
  return (await servers.get(folder)).address;
}

async function show(uri) {
  const folder = uri?.fsPath ?? vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  try {
    const local = vscode.Uri.parse(await addressOf(folder), true);
    const address = (await vscode.env.asExternalUri(local)).toString(true); // a tunnel, where the editor is remote
    const options = { enableScripts: true, retainContextWhenHidden: true };
    const panel = vscode.window.createWebviewPanel("repairgym", "RepairGym", vscode.ViewColumn.Active, options);
    const shown = address.replace(/&/g, "&amp;").replace(/"/g, "&quot;");
    panel.webview.html = `<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; frame-src ${new URL(address).origin}">
<style>html, body, iframe { width: 100%; height: 100%; margin: 0; padding: 0; border: 0; }</style></head>
<body><iframe src="${shown}" title="RepairGym"></iframe></body></html>`;
  } catch (error) {
    vscode.window.showErrorMessage(`RepairGym: ${error.message}`);
  }
}

exports.activate = (context) => context.subscriptions.push(vscode.commands.registerCommand("repairgym.view", show));
exports.deactivate = async () => {
  for (const server of servers.values()) (await server.catch(() => null))?.process.kill("SIGINT");
};
