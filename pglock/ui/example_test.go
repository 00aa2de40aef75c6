package ui_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock/ui"
)

// The page under a prefix of a program that has a login: employees may look, and operators may revoke.
func ExampleHandler() {
	client, stop := locktest.ExampleClient() // in a schema of its own
	defer stop()
	role := func(r *http.Request) string { return r.Header.Get("Role") } // of the user who has logged in
	access := func(r *http.Request) ui.Access {
		switch role(r) {
		case "operator":
			return ui.Revoke
		case "employee":
			return ui.Read
		}
		return ui.None
	}
	user := func(r *http.Request) string { return r.Header.Get("User") }
	page, err := ui.Handler(client, ui.Options{Authorize: access, Actor: user})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/locks/", http.StripPrefix("/locks", page))

	for _, role := range []string{"employee", "visitor"} {
		r := httptest.NewRequest(http.MethodGet, "/locks/", nil)
		r.Header.Set("Role", role)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(role, w.Code)
	}
	// Output:
	// employee 200
	// visitor 403
}
