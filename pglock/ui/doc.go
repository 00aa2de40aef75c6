// Package ui is a web page for the operators of a program that uses pglock: what needs attention,
// with its cure, who holds which lock and who waits, semaphores, elections, schedules, effects without
// an outcome, the clients, and what operators have done.
//
//	page, err := ui.Handler(client, ui.Options{Authorize: access, Actor: user})
//	mux.Handle("/locks/", http.StripPrefix("/locks", page))
//
// The pages are rendered on the server, from Client.Snapshot and Client.Get, and need neither a
// build step nor a script. With the small script that they bring along, an open page is updated by
// server-sent events.
//
//	/           what needs attention now        /clients    sessions and advisory locks
//	/locks      the locks, with a filter        /doctor     the server, and the checks of Doctor
//	/lock       one lock: grants and queue      /healthz    200, or 503 if the database does not answer
//	/waiting    the tree of who waits for whom  /release    POST: ask a holder to release its lock
//	/permits    semaphores and readers–writer   /revoke     POST: end a grant
//	/elections  leaders and candidates          /trigger    POST: run a job now
//	/schedules  jobs with their ticks           /happened, /did-not-happen
//	/once       effects without an outcome                  POST: resolve a key of package once
//
// # Security
//
// The function Authorize of the [Options] decides what each request may do. A proxy on the same
// machine that neither marks requests nor keeps their Host makes all of them local to
// [FromThisMachine], so use Authorize behind one.
//
// Actions are POST requests that [http.CrossOriginProtection] lets through. A browser says where a
// form comes from only over HTTPS and to localhost, and a form over plain HTTP to another host is
// refused. Each action but that which runs a job needs a reason, which ends with the actor and is shown to the
// holder. The action is logged, and recorded in the table operator_actions. To revoke a grant, or to resolve a key,
// its name must be typed.
//
// The Content-Security-Policy allows no inline script or style and no frame. There are no cookies,
// and no headers for other origins. Names, holders and labels can be any text: characters that
// can't be seen, or that change how others are seen, are shown as Go writes them. Labels can hold
// secrets, which Label hides. /healthz answers all requests, with the reason only to those who may
// Read.
//
// # Load
//
// A page that is opened costs one Snapshot, and one Get for a lock. At most one is read at a time,
// and those who wait for the same page share it. The updates of all open pages together are read
// for at most 1 % of the time, and a hidden page is not updated. With 10,000 locks the list takes
// 0.1 s on a small machine, so it is updated every 10 s. A list shows 100 locks at a time.
//
// While the database does not answer, a page keeps what it had, gray, says since when, and tries
// again every few seconds. A request whose body does not arrive within 10 s is ended.
//
// Streams end when the viewer leaves, may no longer Read, or the server begins to shut down.
package ui
