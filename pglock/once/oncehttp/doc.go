// Package oncehttp is a middleware for the HTTP header Idempotency-Key: a request that a client
// repeats with the same key has its effect once, and each repetition gets the same response.
//
//	account := func(r *http.Request) string { return accountOf(r.Context()) } // whose key it is
//	handler, err := oncehttp.Handler(charge, client, account, oncehttp.RequireKey()) // effects anywhere
//	handler, err := oncehttp.TxHandler(order, pool, account, oncehttp.RequireKey())  // effects in the database
//
// [TxHandler] runs the handler in a transaction, which [TxFromContext] returns: the handler's
// writes and its response are committed together. Use it if all effects are in that database.
// [Handler] runs the handler under the lease of the key, and records that the effect begins before
// it does, and its response afterwards. See package once, whose guarantees and limits apply.
//
// # Responses
//
//	the first request with a key        what the handler writes, after it was recorded
//	the same request again              the recorded status, body and headers, and Idempotent-Replayed: true
//	while the first one is in progress  409 in_progress, with Retry-After; or it waits (once.WithWait)
//	another request with the key        422 mismatch: another method, path, query or body
//	the outcome is unknown              500 outcome_unknown: the first request crashed; see WithLookup
//	the response was not stored         410 not_stored: the request is done, its response was too large
//	the stored response is damaged      500 invalid_record: the request is done
//	no key, several keys, a bad key     400 missing_key (RequireKey), 400 invalid_key
//	the body is too large               413 body_too_large
//	the database does not answer        503 unavailable, with Retry-After
//
// The package's own responses are problem details (RFC 9457, application/problem+json) with the
// kind of the error as a member: {"title":"Unprocessable
// Entity","status":422,"detail":"…","error":"mismatch"}. A client repeats the request with the same
// key after 409 and 503, and after a broken connection. After 422 it does not repeat it with a new
// key, because the first request may have had its effect: [WithFingerprint] is for clients whose
// repetitions differ. Header and answers are those of draft-ietf-httpapi-idempotency-key-header.
// Requests with a safe method, such as GET, reach the handler, and nothing is recorded.
//
// # Scopes
//
// A client chooses its keys, and can choose or guess that of another client. So each handler needs
// a scope, a function that says whose key a request carries: with the key and the body of another
// account, a client does not get that account's response. [OneScope] is for handlers whose clients
// may all get each other's responses. Requests for which a scope is empty, such as those without a
// login, have one scope. Package once stores the scope, escaped as in a query, a slash, and the
// key.
//
// # Which responses are recorded
//
// Handler records each response with any status: even a 500 is the answer to its request. A status
// of 1000 or more, at which net/http panics, becomes 500. Exceptions are the statuses of
// [WithNotDone], which say that the request had no effect. If the handler panics or its process
// dies, the outcome is unknown.
//
// TxHandler records statuses below 500. After any other, and after a panic, it rolls back: nothing
// happened, and the request can be repeated.
//
// # Limits
//
// The middleware reads the whole request body before the handler runs, 1 MiB at most by default
// ([WithMaxBody]). It keeps the whole response in memory until it is recorded, so the handler can't
// flush, hijack the connection or send trailers. As JSON with the body in base64, a recorded
// response has once.MaxResult bytes at most, which is a body of about 700 KiB. Handler sends a
// larger one to the first client without recording it; TxHandler rolls back and answers 500
// response_too_large.
package oncehttp
