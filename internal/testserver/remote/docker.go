package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/pglock/pglock-go/internal/testserver"
)

const (
	containerPort = "5432"
	engineTimeout = 5 * time.Second
	startTimeout  = 60 * time.Second
	stopTimeout   = 30 * time.Second
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
		return nil, fmt.Errorf("no Docker engine answers: %s", oneLine(err))
	}
	return provider, nil
}

// startContainer runs the image in a container and returns the URL of its server. testserver.Close
// removes the container.
func startContainer(ctx context.Context, task testserver.Task) (string, error) {
	provider, err := engine(ctx)
	if err != nil {
		return "", err
	}
	defer provider.Close()
	name, err := testserver.ContainerName()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, task.Patience, fmt.Errorf("the registry kept silent for %v", task.Patience))
	defer cancel()
	box, err := provider.RunContainer(ctx, request(task, name))
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return "", fmt.Errorf("image %s: %s", task.Image, oneLine(err))
	}
	address, err := awaitContainer(ctx, box)
	if err != nil {
		return "", fmt.Errorf("image %s: %w", task.Image, err)
	}
	return testserver.ServerURL(address), nil
}

func request(task testserver.Task, name string) testcontainers.ContainerRequest {
	command := []string{"postgres", "-c", "fsync=off", "-c", "full_page_writes=off"}
	for setting, value := range task.Settings {
		command = append(command, "-c", setting+"="+value)
	}
	return testcontainers.ContainerRequest{
		Name: name, Image: task.Image, Cmd: command, ExposedPorts: []string{containerPort + "/tcp"},
		Env: map[string]string{"POSTGRES_USER": testserver.Superuser, "POSTGRES_PASSWORD": testserver.Password},
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
func local() bool { return !strings.HasPrefix(os.Getenv("DOCKER_HOST"), "tcp:") }

// awaitContainer returns the address at which the server in the container answers. An image's log
// lines are no help: the official image says "ready" before it restarts its server.
func awaitContainer(ctx context.Context, box testcontainers.Container) (address string, err error) {
	if testserver.Poll(ctx, startTimeout, func() bool {
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
	if err = testserver.Ping(ctx, testserver.ServerURL(address)); err == nil {
		return address, nil
	}
	ip, failed := box.ContainerIP(ctx)
	if failed != nil || ip == "" {
		return "", err
	}
	address = net.JoinHostPort(ip, containerPort)
	return address, testserver.Ping(ctx, testserver.ServerURL(address))
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func containerLog(ctx context.Context, box testcontainers.Container) string {
	logs, err := box.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer logs.Close()
	text, _ := io.ReadAll(io.LimitReader(logs, 1<<20)) // an addition
	return testserver.LastLines(string(text))
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
		return fmt.Errorf("remove container %s: %w", name, err)
	}
	return nil
}
