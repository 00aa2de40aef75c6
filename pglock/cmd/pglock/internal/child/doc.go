// Package child runs one command in its own process group, sends signals to that group, and on
// Linux ends all processes that the command has started.
//
//	            Start
//	              │              Follow: this process stops as well
//	              ▼       stops  ┌──────────────────┐
//	           running ────────▶ stopped            │
//	              │  ▲           │  ◀───────────────┘ both are continued
//	              │  └─ Resume ──┘
//	              ▼
//	Done: Status is known; GroupAlive and Alive report whether other processes still run
//
// # The supervisor
//
// On Linux a second process, the supervisor, stands between this process and the command:
//
//	this process ◀── socket ──▶ supervisor ──▶ command ──▶ what the command starts
//
// The supervisor is the subreaper of all processes below it: a process whose parent ends becomes
// the supervisor's child, in any process group or session. So the tree can always be found, and the
// supervisor knows when the last process has ended.
//
//	this process is killed     the socket is closed: the supervisor kills the tree
//	this process is suspended  the supervisor ends the tree at its deadlines: see Command.Deadlines
//	the supervisor is killed   the kernel kills the command; this process is a subreaper too,
//	                           inherits the rest, and replaces the supervisor
//	both are killed at once    the kernel kills the command; processes that it has started run on
//	the supervisor is killed   the same: its orphans run on
//	while this is suspended
//	both are suspended         the tree runs on until one of them continues
//
// The supervisor is this program, started again, for which it needs /proc: see Hook. It has its own
// process group, discards signals, and prints nothing. Its name is lock-supervisor, which `pkill -9
// pglock` does not match.
//
// On other systems the command is this process's child, and has no deadlines. On Windows the end of
// the job object ends the command and its descendants, but elsewhere nothing ends them if this
// process is killed.
//
// # The terminal
//
// If this process is in the foreground of a terminal, the command's group replaces it there, so
// that the command can read from the terminal, and gets its Ctrl-C and Ctrl-Z. In a pipe this could
// take the terminal from the other end, so there the command gets the foreground when it first
// needs it.
package child
