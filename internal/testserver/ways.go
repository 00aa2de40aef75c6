package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// config is what the environment says about where a server comes from.
type config struct {
	ways       []Way // to try, in this order
	url        string
	image      string
	repository string
	patience   time.Duration
}

func readConfig() (config, error) {
	c := config{
		ways:       []Way{WayDocker, WayLocal, WayEmbedded},
		url:        os.Getenv(URLVariable),
		image:      os.Getenv(ImageVariable),
		repository: os.Getenv(RepositoryVariable),
		patience:   10 * time.Second,
	}
	if text := os.Getenv(PatienceVariable); text != "" {
		patience, err := time.ParseDuration(text)
		if err != nil || patience <= 0 {
			return c, fmt.Errorf("testserver: %s=%s: not a duration above zero, like 10s", PatienceVariable, text)
		}
		c.patience = patience
	}
	switch forced := Way(os.Getenv(ServerVariable)); {
	case forced == WayURL && c.url == "":
		return c, fmt.Errorf("testserver: %s=%s, but %s isn't set", ServerVariable, forced, URLVariable)
	case forced == WayURL, forced == WayDocker, forced == WayLocal, forced == WayEmbedded:
		c.ways = []Way{forced}
	case forced != "":
		return c, fmt.Errorf("testserver: %s=%s: must be url, docker, local or embedded", ServerVariable, forced)
	case c.url != "":
		c.ways = []Way{WayURL}
	case c.image != "":
		c.ways = []Way{WayDocker}
	}
	if c.image == "" {
		c.image = DefaultImage
	}
	if c.repository == "" {
		c.repository = defaultRepository
	}
	return c, nil
}

// running is a server that one of the ways led to.
type running struct {
	Shared
	exited <-chan struct{} // closed when the server ended by itself; nil if nobody can tell
	said   func() string   // the end of what it logged
	stop   func() error    // ends it and removes all it owns
}

// start tries the ways one after the other. Its error tells each of them.
func (c config) start(ctx context.Context, dir string) (*running, error) {
	var passed []string
	for _, way := range c.ways {
		begin := time.Now()
		server, err := c.startBy(ctx, way, dir)
		if err == nil {
			server.Way, server.Passed = way, passed
			fmt.Fprintf(os.Stderr, "%s after %v\n", &server.Shared, time.Since(begin).Round(time.Millisecond))
			return server, nil
		}
		passed = append(passed, fmt.Sprintf("%s: %s", way, strings.TrimPrefix(err.Error(), "testserver: ")))
	}
	return nil, errors.New(":\n  " + strings.Join(passed, "\n  ") + "\n" + advice(c.ways))
}

func (c config) startBy(ctx context.Context, way Way, dir string) (*running, error) {
	switch way {
	case WayDocker:
		return c.startContainer(ctx)
	case WayLocal:
		return startLocal(ctx, dir)
	case WayEmbedded:
		return c.startEmbedded(ctx, dir)
	}
	return nil, fmt.Errorf("testserver: %q is no way to start a server", way)
}

// advice says what a person can do.
func advice(ways []Way) string {
	text := "Any one of these helps:\n"
	if len(ways) == 1 {
		text = fmt.Sprintf("Only this way was tried, since %s, %s or %s asks for it. Otherwise any one of these helps:\n",
			ServerVariable, ImageVariable, URLVariable)
	}
	return text +
		"  - install PostgreSQL on this machine (apt-get install postgresql, brew install postgresql)\n" +
		"  - start a Docker engine that can pull " + DefaultImage + ", or build an image with testdata/image/build.sh\n" +
		"    and name it in " + ImageVariable + "\n" +
		"  - set " + URLVariable + " to a server that runs, as its superuser"
}
