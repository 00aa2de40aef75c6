package testserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

const (
	containerFile = "container" // in a home
	containerPort = "5432"
	engineTimeout = 5 * time.Second
)

// engine returns testcontainers-go's Docker engine if it answers.
func engine(ctx context.Context) (*testcontainers.DockerProvider, error) {
	// The keeper removes the container, so the image of the module's own reaper is not needed.
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	provider, err := testcontainers.NewDockerProvider(testcontainers.WithDefaultBridgeNetwork(testcontainers.Bridge))
	if err == nil {
		_, err = provider.Client().Ping(ctx, client.PingOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("testserver: no Docker engine answers: %s", oneLine(err))
	}
	return provider, nil
}

// startContainer runs the image in a container. Close removes the container.
func (c config) startContainer(ctx context.Context) (*Shared, error) {
	provider, err := engine(ctx)
	if err != nil {
		return nil, err
	}
	defer provider.Close()
	h, err := homeIn(root(false))
	if err != nil {
		return nil, err
	}
	name := filepath.Base(h.dir)
	if err := os.WriteFile(filepath.Join(h.dir, containerFile), []byte(name), 0o600); err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.patience, fmt.Errorf("the registry kept silent for %v", c.patience))
	defer cancel()
	box, err := provider.RunContainer(ctx, c.request(name))
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return nil, fmt.Errorf("testserver: image %s: %s", c.image, oneLine(err))
	}
	address, err := awaitContainer(ctx, box)
	if err != nil {
		return nil, fmt.Errorf("testserver: image %s: %w", c.image, err)
	}
	return &Shared{URL: serverURL(address), Detail: c.image}, nil
}

func (c config) request(name string) testcontainers.ContainerRequest {
	command := []string{"postgres", "-c", "fsync=off", "-c", "full_page_writes=off"}
	for setting, value := range c.settings {
		command = append(command, "-c", setting+"="+value)
	}
	return testcontainers.ContainerRequest{
		Name: name, Image: c.image, Cmd: command, ExposedPorts: []string{containerPort + "/tcp"},
		Env: map[string]string{"POSTGRES_USER": superuser, "POSTGRES_PASSWORD": password, "POSTGRES_DB": superuser},
		HostConfigModifier: func(host *container.HostConfig) {
			if local() {
				host.PortBindings = network.PortMap{
					network.MustParsePort(containerPort + "/tcp"): {{HostIP: netip.MustParseAddr("127.0.0.1")}},
				}
			}
		},
	}
}

// local reports whether the engine is on this machine, as far as the environment says.
func local() bool { return len(os.Getenv("DOCKER_HOST")) < 4 || os.Getenv("DOCKER_HOST")[:4] != "tcp:" }

// awaitContainer returns the address at which the server in the container answers. An image's log
// lines are no help: the official image says "ready" before it restarts its server.
func awaitContainer(ctx context.Context, box testcontainers.Container) (address string, err error) {
	if poll(ctx, startTimeout, func() bool {
		var ended error
		if address, err = reachContainer(ctx, box); err != nil {
			// A container that has ended has no ports. The reason is its exit status.
			if state, failed := box.State(ctx); failed == nil && !state.Running {
				ended = fmt.Errorf("the container ended with status %d: %s", state.ExitCode, containerLog(ctx, box))
				err = ended
			}
		}
		return err == nil || ended != nil
	}) {
		return address, err
	}
	return "", fmt.Errorf("no answer: %w", err)
}

// reachContainer returns the first address of the container at which its server answers: the port
// of the engine's machine, or the container's own address when the tests run in a container, too.
func reachContainer(ctx context.Context, box testcontainers.Container) (string, error) {
	port, err := box.MappedPort(ctx, containerPort+"/tcp")
	if err != nil {
		return "", err
	}
	host := "127.0.0.1"
	if !local() {
		if host, err = box.Host(ctx); err != nil {
			return "", err
		}
	}
	address := net.JoinHostPort(host, port.Port())
	if err = ping(ctx, serverURL(address)); err == nil {
		return address, nil
	}
	ip, failed := box.ContainerIP(ctx)
	if failed != nil || ip == "" {
		return "", err
	}
	address = net.JoinHostPort(ip, containerPort)
	return address, ping(ctx, serverURL(address))
}

func containerLog(ctx context.Context, box testcontainers.Container) string {
	logs, err := box.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer logs.Close()
	text, _ := io.ReadAll(io.LimitReader(logs, 1<<20)) // an addition
	return lastLines(string(text))
}

// removeContainer removes a container with its volumes. It does nothing if there is none.
func removeContainer(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	provider, err := engine(ctx)
	if err != nil {
		return err
	}
	defer provider.Close()
	_, err = provider.Client().ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) { // conflict: somebody is removing it
		return fmt.Errorf("testserver: remove container %s: %w", name, err)
	}
	return nil
}
