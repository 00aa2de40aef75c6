// Package fencehttp carries fencing tokens over HTTP, so that a server can refuse the requests of
// a holder whose lock has been granted to another.
//
// The client sends the fence of its lease in the header Fencing-Token; the server compares its
// token with those of earlier requests for the same resource:
//
//	client                                       server
//	NewContext(lease.Context(), lease.Fence())
//	http.Client{Transport: &Transport{}} ──────▶ Handler(next, checker)
//	                                               token is not older ──▶ next
//	CheckResponse ◀── 412 Precondition Failed ──── token is older
//
// The server needs only a [fencing.Checker], and no connection to the database of the locks. A
// [fencing.MemoryChecker] serves one process. That of [fencing.NewTableChecker] serves several, and
// keeps its tokens in any database with pglock's tables.
//
// A fence is not a secret: it is no substitute for authentication.
package fencehttp
