package leasetable

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/store"
)

// LockFilter selects locks by all of its fields that are set. The zero value selects all locks, held
// or free.
type LockFilter struct {
	Held    bool              // held locks only
	Prefix  string            // of the name
	Pattern string            // of the whole name: * is any text, ? any character
	Holder  string            // of the last grant, unless released
	Labels  map[string]string // of the last grant, which may have more
}

// likePattern turns a Pattern into one of LIKE.
var likePattern = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`, `?`, `_`)

// check returns the filter for the server.
func (f LockFilter) check() (store.Filter, error) {
	for what, text := range map[string]string{"prefix": f.Prefix, "pattern": f.Pattern, "holder": f.Holder} {
		if !storable(text) {
			return store.Filter{}, invalidOption("lock filter: %s %.64q: must be UTF-8 without NUL", what, text)
		}
	}
	for k, v := range f.Labels {
		if !storable(k) || !storable(v) {
			return store.Filter{}, invalidOption("lock filter: label %.64q: key and value must be UTF-8 without NUL", k)
		}
	}
	labels := []byte("{}")
	if len(f.Labels) > 0 {
		var err error
		if labels, err = json.Marshal(f.Labels); err != nil {
			return store.Filter{}, invalidOption("lock filter: labels: %v", err)
		}
	}
	return store.Filter{
		Held: f.Held, Prefix: f.Prefix, Pattern: likePattern.Replace(f.Pattern), Holder: f.Holder, Labels: string(labels),
	}, nil
}

// Locks returns the locks that match filter, in the order of their names by the database's
// collation. Locks whose row has been pruned, or that were never granted, have none.
//
// The locks are read in steps of some hundred rows, each with a statement of its own. Between two
// steps the client holds no connection and no snapshot, however long the caller's loop takes, and
// its memory does not grow with the number of locks. Each lock is as it was when its step was read;
// locks of different steps may never have been in these states at the same time.
//
// An error ends the iteration. It wraps ErrInvalidOption for an invalid filter, ErrUnavailable if
// the server does not answer a step within 5 s, ErrClosed, or the error and cause of ctx. ctx bounds
// the whole iteration.
func (c *Client) Locks(ctx context.Context, filter LockFilter) iter.Seq2[LockInfo, error] {
	return func(yield func(LockInfo, error) bool) {
		f, err := filter.check()
		if err != nil {
			yield(LockInfo{}, err)
			return
		}
		for page := (store.Page{}); !page.Done; {
			if page, err = c.listStep(ctx, page.Last, f); err != nil {
				yield(LockInfo{}, err)
				return
			}
			for _, row := range page.Rows {
				if !yield(newLockInfo(row), nil) {
					return
				}
			}
		}
	}
}

// listStep reads the next locks after a name.
func (c *Client) listStep(ctx context.Context, after string, f store.Filter) (store.Page, error) {
	if err := c.beginCall(); err != nil {
		return store.Page{}, err
	}
	defer c.endCall()
	page, err := c.store.List(ctx, after, f)
	switch {
	case err != nil && ctx.Err() != nil && !errors.Is(err, ErrClosed):
		return page, errs.Errorf("pglock: list locks: %w", endOf(ctx))
	case err != nil:
		return page, c.store.Explain("list locks", err)
	}
	return page, nil
}
