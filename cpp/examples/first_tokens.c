/* From a model directory to streamed answers in C99: quire_example_c MODEL_DIR PROMPT
 *
 * The prompt is asked twice: the first answer's events are polled, and the second's come to a callback. */
#include <quire/quire.h>

#include <semaphore.h>
#include <stdio.h>
#include <string.h>

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, quire_last_error());
  return 1;
}

static void print_event(const quire_event* event) {
  printf("%.*s\n", (int)event->json_size, event->json);
  fflush(stdout);
}

// Called on a thread of the engine's.
static void on_event(const quire_event* event, void* user_data) {
  print_event(event);
  if (!event->finished) return;
  quire_release(event->request);
  sem_post((sem_t*)user_data);
}

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "usage: quire_example_c MODEL_DIR PROMPT\n"), 2;
  quire_engine engine = 0;
  const quire_engine_options options = {
      .struct_size = sizeof options, .model = argv[1], .config_json = "{\"max_num_seqs\": 4}"};
  if (quire_engine_create(&options, &engine) != QUIRE_OK) return fail("create");

  quire_submission submission = {
      .struct_size = sizeof submission, .text = argv[2], .text_size = strlen(argv[2])};
  submission.params_json = "{\"temperature\": 0, \"max_tokens\": 24, \"stream\": true}";
  quire_request request = 0;
  if (quire_submit(engine, &submission, &request) != QUIRE_OK) return fail("submit");
  quire_event event = {.struct_size = sizeof event};
  while (quire_poll(request, -1, &event) == QUIRE_OK) print_event(&event);
  quire_release(request);

  submission.params_json = "{\"temperature\": 0, \"max_tokens\": 24}";
  sem_t finished;
  sem_init(&finished, 0, 0);
  submission.callback = on_event;
  submission.user_data = &finished;
  if (quire_submit(engine, &submission, &request) != QUIRE_OK) return fail("submit");
  sem_wait(&finished);
  sem_destroy(&finished);

  quire_engine_stats stats = {.struct_size = sizeof stats};
  if (quire_engine_get_stats(engine, &stats) != QUIRE_OK) return fail("stats");
  fprintf(stderr, "%llu tokens generated\n", (unsigned long long)stats.num_generation_tokens);
  return quire_engine_destroy(engine) == QUIRE_OK ? 0 : fail("destroy");
}
