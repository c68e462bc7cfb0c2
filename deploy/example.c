/* A whole program on the client library: asks a cluster to go on with a text, and prints its answer
 * as it comes. Where flotilla is installed:
 *     cc -o example example.c $(pkg-config --cflags --libs flotilla-client)
 *     ./example tcp://127.0.0.1:7070 'Once upon a time' */
#include <flotilla/client.h>
#include <stdio.h>

static void on_reply(void *arg, struct client_call *call, const struct client_reply *reply)
{
    (void)arg;
    (void)call; /* client_cancel(call) would end it */
    fputs(reply->text, stdout);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct client *client;
    struct client_request request;
    struct client_end end;
    struct errmsg why;
    if (argc != 3) return 2;
    client_request_init(&request);
    request.prompt = argv[2];
    request.max_tokens = 32;
    int rc = client_open(argv[1], &client, &why);
    if (rc == 0) {
        rc = client_generate(client, &request, on_reply, NULL, &end, &why);
        client_close(client);
    }
    if (rc < 0)
        fprintf(stderr, "%s\n", why.text);
    else if (end.status != STATUS_OK)
        fprintf(stderr, "%s: %s\n", client_status_name(end.status), end.text);
    else
        putchar('\n');
    return rc < 0 || end.status != STATUS_OK;
}
