package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

const (
	maxForm  = 16 << 10
	maxActor = 100 // bytes, so that there is room for a reason
)

// action is what a form does to a grant.
type action struct {
	name  string // in the log
	needs Access // Revoke: and the name of the lock
	call  func(c *pglock.Client, ctx context.Context, name string, token pglock.Token, reason string) error
}

// actions are the actions by their paths.
var actions = map[string]*action{
	"release": {"request release", Operate, (*pglock.Client).RequestRelease},
	"revoke":  {"revoke", Revoke, (*pglock.Client).Revoke},
}

// act answers a form. The page of the lock then shows what the action has changed.
func (h *handler) act(w http.ResponseWriter, r *http.Request, access Access, a *action) {
	w.Header().Del("Connection") // the body is read
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	name, typed := r.URL.Query().Get("name"), r.PostFormValue("confirm")
	token, _ := strconv.ParseInt(r.PostFormValue("token"), 10, 64) // 0 is no token
	actor := strings.ReplaceAll(h.Actor(r), "\x00", "")
	actor = strings.ToValidUTF8(actor[:min(len(actor), maxActor)], "")
	reason := strings.TrimSpace(fmt.Sprintf("%s (by %s)", r.PostFormValue("reason"), actor))
	err := errs.InvalidOption("ui", "%s: nothing was changed: the typed name is not that of the lock", a.name)
	if a.needs < Revoke || typed == name || typed == visible(name) {
		err = a.call(h.client, r.Context(), name, pglock.Token(token), reason)
	}
	h.Logger.InfoContext(r.Context(), "pglock: ui: "+a.name, "actor", actor, "lock", name, "token", token, "reason", reason, "error", err)
	if err != nil {
		h.render(w, r, access, refusal, reading{err: err})
		return
	}
	w.Header().Set("Location", "lock?"+url.Values{"name": {name}}.Encode())
	w.WriteHeader(http.StatusSeeOther)
}
