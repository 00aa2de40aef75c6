// Package once makes a request that is repeated under the same idempotency key happen once, and
// gives each repetition the answer of the first.
//
// [Tx] is for effects in the database. The effect, the key and the result are one transaction, the
// caller's own:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
//		order, err = once.Tx(ctx, tx, key, body, func(ctx context.Context) (Order, error) {
//			return insertOrder(ctx, tx, body)
//		})
//		return err
//	})
//
// [Do] is for effects outside the database, such as a payment at a bank. It records that the effect
// begins before it does, under the lock of the key:
//
//	receipt, err := once.Do(ctx, client, key, body, func(ctx context.Context, l *pglock.Lease) (Receipt, error) {
//		return bank.Pay(ctx, key, l.Token(), amount)
//	})
//
// Package oncehttp answers requests with the header Idempotency-Key by one of them.
//
// # Guarantees
//
//   - Tx: the effect is committed once, and each call that returns nil returns the result that was
//     committed with it. That holds at every isolation level, and through crashes and failovers
//     that lose no committed transaction.
//   - Do with the default rule or with [WithLookup]: fn does not run again after an attempt that
//     may have had its effect. Each call that returns nil returns the same result.
//   - A key that is used for another request is [ErrMismatch], while the key is kept.
//   - A repeated call that finds an answer writes nothing and holds no lock.
//
// # The states of a key
//
//	          Tx commits                      ┌─ a result ───▶ done ────┐
//	(none) ──────────────▶ done    started ───┼─ Failed(err) ▶ failed ──┴─ retention ─▶ (none)
//	   │      Do begins               ▲       ├─ NotDone(err) ─▶ (none)
//	   └──────────────────────────────┘       └─ crash, another error: outcome unknown
//
// A key that is started has a running attempt, or an unknown outcome. The attempt is running while
// its lease is held, which [Get] and the view once_started report. The record of an unknown outcome
// never expires. The next call of Do with a rule resolves it, and so does an operator who has found
// out what happened, by [Resolve] or `pglock once resolve`.
//
// # Which errors of fn mean what
//
// Only the caller knows whether a failed effect may have happened. A time-out, a broken connection
// and an answer 500 of a payment API leave that open: return them as they are. A refused
// connection, a rate limit and a validation error say that nothing happened: return NotDone(err),
// and the key is free again. A declined card is an answer that later calls must get as well: return
// it as a result, or as Failed(err). In doubt, an error leaves the outcome unknown.
//
// # Paused processes
//
// A process that is paused after it has recorded "started" may continue when its lease is lost and
// another attempt has asked whether the effect happened. Its context is done, but it may run a few
// instructions before it looks. No lock can prevent that; the receiver of the effect can. Send it
// the key, if it knows idempotency keys, or the token of the lease, and let it refuse older ones
// (see package fencing). Its record is safe in any case: the statement that records an outcome
// names the token of the attempt, so an attempt that was replaced changes nothing and gets the
// answer of its successor.
//
// # Isolation levels
//
// At READ COMMITTED a call of Tx that meets another open one with its key waits, and then returns
// that one's result, or runs fn if that one was rolled back. At REPEATABLE READ and SERIALIZABLE it
// waits as well. If the other one was committed, the call fails with [fencing.ErrSnapshot]
// (SQLSTATE 40001), because its snapshot can't show the result. Run the transaction again, as after
// any serialization failure: it then finds the result.
//
// # Limits
//
// A key has 1 to 512 bytes, a result 1 MiB at most. A caller that knows a key and the fingerprint
// gets the result, so a key that comes from a client must include who the client is. A key belongs
// to one of Tx and Do: Tx returns ErrOutcomeUnknown for a key that Do has started.
//
// Answers are kept for 24 h ([WithRetention]). A request that is repeated later is a new one.
// [Prune] deletes expired rows; nothing else does, so call it regularly.
//
// An asynchronous failover may lose the record of an attempt of Do, and then the next call repeats
// the effect, which synchronous replication prevents.
//
// The rights that migrations.WithUser grants, which callers need, are for all keys.
package once
