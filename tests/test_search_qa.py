"""Search and answer: scores, the invented world, indexes, servers, real rows, episodes."""

import contextlib
import json
import pickle
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ragen2_cli.envs.search_qa import SearchQA
from ragen2_cli.envs.search_qa.index import MemoryIndex, StoredIndex, open_index
from ragen2_cli.envs.search_qa.questions import TEMPLATES, question
from ragen2_cli.envs.search_qa.score import exact_match, f1, normalize, retrieval_precision, reward
from ragen2_cli.envs.search_qa.server import RetrievalError, ServerRetriever
from ragen2_cli.envs.search_qa.world import Passage, world
from ragen2_cli.errors import UserError


def test_normalization_by_the_squad_rules():
    assert normalize("The  Eiffel-Tower, in a city!") == "eiffeltower in city"
    assert normalize("An 'A' the") == ""
    assert exact_match("the Beatles.", ["Beatles"])
    assert not exact_match("Beatle", ["Beatles"])


@pytest.mark.parametrize(
    ("answer", "reference", "value"),
    [
        # shared 2 of 3 and 2 tokens: 2 * 2 / 5
        ("new york city", "New York", 0.8),
        # shared 1 of 2 and 3 tokens: 2 / 5
        ("york minster", "new york city", 0.4),
        # multiplicity: "la la land" and "la land" share 2
        ("la la land", "La Land", 0.8),
        ("Paris", "London", 0.0),
        ("yes", "yes", 1.0),
        ("yes indeed", "yes", 0.0),
        ("no", "no way", 0.0),
        ("", "x", 0.0),
    ],
)
def test_f1_known_answers(answer, reference, value):
    assert f1(answer, [reference]) == pytest.approx(value)
    assert f1(reference, [answer]) == pytest.approx(value)


def test_reward_has_a_floor():
    # 2 * 1 / (1 + 6) = 0.286 < 0.3
    assert reward("york", ["york one two three four five"]) == 0.0
    assert reward("york", ["york one two three four"]) == pytest.approx(1 / 3)
    assert reward("b", ["a x", "b"]) == 1.0


def test_retrieval_precision():
    assert retrieval_precision(["a", "b", "c", "d"], frozenset({"a", "z"})) == 0.25
    assert retrieval_precision([], frozenset({"a"})) is None
    assert retrieval_precision(["a"], frozenset()) is None


def test_the_world_is_consistent():
    found = world()
    counts = [
        len(part)
        for part in (found.towns, found.people, found.works, found.events, found.companies)
    ]
    assert counts == [60, 240, 240, 60, 60]
    titles = [passage.title for passage in found.passages]
    assert len(set(titles)) == len(titles) == 660
    people = {person.name: person for person in found.people}
    towns = {town.name for town in found.towns}
    assert all(person.town in towns for person in found.people)
    for person in found.people:
        if person.mentor:
            teacher = people[person.mentor]
            assert teacher.profession == person.profession
            assert 15 < person.year - teacher.year < 60
    assert all(20 < work.year - people[work.author].year < 60 for work in found.works)
    assert len({(work.title, work.kind) for work in found.works}) == 240


def test_answers_stand_in_the_named_passages_and_two_hops_need_both():
    texts = {passage.title: passage.text for passage in world().passages}
    hops = []
    for seed in range(600):
        asked = question(seed)
        hops.append(asked.hops)
        assert asked.gold <= texts.keys()
        if asked.answers[0] in ("yes", "no"):
            continue
        holding = [title for title in asked.gold if asked.answers[0] in texts[title]]
        assert holding, asked
        assert asked.answers[0] not in asked.text
        if asked.hops == 2:
            assert len(holding) == 1, asked
    assert 200 < hops.count(2) < 500
    assert hops.count(1) + hops.count(2) == 600


def test_questions_vary_and_yes_and_no_both_occur():
    asked = [question(seed) for seed in range(2000)]
    assert len({item.text for item in asked}) > 1200
    answers = [item.answers[0] for item in asked]
    assert answers.count("yes") > 20
    assert answers.count("no") > 20
    assert len(TEMPLATES) == 12


def test_same_seed_same_question_in_another_process():
    code = "from ragen2_cli.envs.search_qa.questions import question; print(question(7))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "text=" in out.stdout
    code = code.replace("question(7))", "question(7).text)")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == question(7).text


DOCUMENTS = (
    Passage("Cats", "cats purr and sleep"),
    Passage("Dogs", "dogs bark and run"),
    Passage("Birds", "birds sing and fly"),
    Passage("More cats", "cats and more cats, cats"),
)


def test_search_order_and_no_match():
    index = MemoryIndex(DOCUMENTS)
    assert [p.title for p in index.search("cats", 9)] == ["More cats", "Cats"]
    assert [p.title for p in index.search("dogs birds", 1)] in (["Dogs"], ["Birds"])
    assert index.search("unicorn", 3) == []
    assert index.search("the and", 3) == []
    assert index.search("", 3) == []
    with pytest.raises(UserError, match="no text of the corpus has a word"):
        MemoryIndex([Passage("a", "the")])


def test_search_finds_what_most_questions_need():
    index = MemoryIndex(world().passages)
    found = 0
    for seed in range(200):
        asked = question(seed)
        titles = {passage.title for passage in index.search(asked.text, 5)}
        found += bool(titles & asked.gold)
    assert found > 160


def corpus_file(tmp_path, name="corpus.jsonl"):
    path = tmp_path / name
    rows = [{"id": str(n), "contents": f'"{p.title}"\n{p.text}'} for n, p in enumerate(DOCUMENTS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_stored_index_answers_like_the_one_in_memory(tmp_path):
    corpus = corpus_file(tmp_path)
    built = open_index(corpus, "")
    again = StoredIndex(tmp_path / "corpus.jsonl.bm25", corpus)
    for query in ("cats", "dogs sing", "nothing"):
        expected = MemoryIndex(DOCUMENTS).search(query, 3)
        assert built.search(query, 3) == again.search(query, 3) == expected


def test_an_index_of_another_corpus_or_half_written_is_refused(tmp_path):
    corpus = corpus_file(tmp_path)
    open_index(corpus, str(tmp_path / "index"))
    other = tmp_path / "other.jsonl"
    other.write_text('{"title": "x", "text": "y"}\n')
    with pytest.raises(UserError, match="belongs to another corpus"):
        open_index(str(other), str(tmp_path / "index"))
    (tmp_path / "index" / "index.json").unlink()
    with pytest.raises(UserError, match="no complete search index"):
        StoredIndex(tmp_path / "index")
    with pytest.raises(UserError, match="no such corpus file"):
        open_index(str(tmp_path / "absent.jsonl"), "")
    other.write_text('{"title": "x"}\n')
    with pytest.raises(UserError, match="row 0: field 'text' is missing"):
        open_index(str(other), "")


class Stub(BaseHTTPRequestHandler):
    mode = "good"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.mode == "slow":
            time.sleep(1.0)
        documents = [
            {"document": {"contents": f'"{p.title}"\n{p.text}'}, "score": 1.0} for p in DOCUMENTS
        ]
        body = json.dumps({"result": [documents[: asked["topk"]] for _ in asked["queries"]]})
        body = {"junk": "not json", "empty": "{}", "long": " " * (5 << 20)}.get(self.mode, body)
        self.send_response(500 if self.mode == "broken" else 200)
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body.encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/retrieve"
        running.shutdown()
        thread.join()


def test_a_retrieval_server_is_used(server, monkeypatch):
    monkeypatch.setattr(Stub, "mode", "good")
    assert ServerRetriever(server).search("cats", 2) == list(DOCUMENTS[:2])
    env = SearchQA(retriever=server, top_k=3)
    env.reset(0)
    assert env.step("search[cats]").reward == 0.0
    assert "[3] Birds: birds sing and fly" in env.observe()


@pytest.mark.parametrize("mode", ["slow", "broken", "junk", "empty", "long"])
def test_a_bad_server_is_nobodys_score(server, mode, monkeypatch):
    monkeypatch.setattr(Stub, "mode", mode)
    began = time.monotonic()
    with pytest.raises(RetrievalError):
        ServerRetriever(server, seconds=0.2).search("cats", 2)
    assert time.monotonic() - began < 2.0
    monkeypatch.setattr(ServerRetriever, "__init__", _impatient)
    env = SearchQA(retriever=f"{server}?{mode}")
    env.reset(0)
    result = env.step("search[cats]")
    assert (result.reward, result.done) == (None, True)


def _impatient(self, url):
    self.url, self.seconds, self.tries = url, 0.2, 1


def test_a_server_that_is_down_or_no_address(caplog):
    env = SearchQA(retriever="http://127.0.0.1:9/retrieve")
    env.reset(0)
    assert env.step("search[x]").reward is None
    assert "127.0.0.1:9" in caplog.text
    with pytest.raises(UserError, match="starts with http"):
        SearchQA(retriever="localhost:8000").reset(0)


def test_episode():
    env = SearchQA()
    first = env.reset(11)
    asked = question(11)
    assert first == f"Question: {asked.text}"
    result = env.step(f"Search[ {asked.text} ]")
    assert (result.reward, result.done, result.valid) == (0.0, False, True)
    assert result.info is not None
    assert 0 < result.info["retrieval_precision"] <= 1
    assert env.observe().count("\n[") == 5
    assert pickle.loads(pickle.dumps(env)).observe() == env.observe()
    done = env.step(f"finish[The {asked.answers[0]}.]")
    assert (done.reward, done.done, done.success) == (1.0, True, True)
    assert done.info == {"f1": 1.0, "em": 1.0}
    with pytest.raises(RuntimeError):
        env.step("finish[x]")


def test_other_text_is_invalid_and_not_an_answer():
    env = SearchQA()
    before = env.reset(2)
    answer = question(2).answers[0]
    for text in ("", answer, "search", "search[]", "finish[ ]", f"the answer: finish[{answer}]"):
        result = env.step(text)
        assert not result.valid, text
        assert not result.done
    assert env.step("search[" + "w " * 600 + "]").valid is False
    assert env.observe() == before


def test_shown_passages_are_cut():
    env = SearchQA(max_chars=200, top_k=50)
    env.reset(0)
    env.step("search[town river region]")
    assert len(env.observe()) <= len(f"Question: {question(0).text}") + 1 + 200


HUB_ROW = {
    "question": "Which cat purrs?",
    "answer": "Tom",
    "supporting_facts": {"title": ["Tom"], "sent_id": [0]},
    "context": {"title": ["Tom", "Rex"], "sentences": [["Tom purrs.", " Often."], ["Rex barks."]]},
}


def test_hotpotqa_rows_of_both_layouts(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    hub = tmp_path / "hub.parquet"
    pq.write_table(pa.Table.from_pylist([HUB_ROW]), hub)
    original = tmp_path / "original.json"
    pairs = {
        "supporting_facts": [["Tom", 0]],
        "context": [["Tom", ["Tom purrs.", " Often."]], ["Rex", ["Rex barks."]]],
    }
    original.write_text(json.dumps([HUB_ROW | pairs]))
    for path in (hub, original):
        env = SearchQA(data=str(path))
        assert env.reset(0) == "Question: Which cat purrs?"
        assert env.step("search[purrs]").info == {"retrieval_precision": 1.0}
        assert "[1] Tom: Tom purrs. Often." in env.observe()
        assert env.step("finish[tom]").success


def test_rows_without_passages_need_a_corpus(tmp_path):
    data = tmp_path / "nq.jsonl"
    data.write_text(json.dumps({"question": "q?", "golden_answers": ["a", "b"]}))
    with pytest.raises(UserError, match="no row has a 'context'"):
        SearchQA(data=str(data)).reset(0)
    env = SearchQA(data=str(data), corpus=corpus_file(tmp_path))
    env.reset(0)
    assert env.step("search[cats]").info is None
    assert env.step("finish[b]").success


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "a"}, "row 0: field 'question' is missing"),
        ({"question": "q"}, "row 0: field 'answer' is missing"),
        ({"question": "q", "golden_answers": []}, "'golden_answers' must be"),
        ({"question": "q", "answer": "a", "context": [1]}, "'context' has neither"),
        ({"question": "q", "answer": "a", "context": {"title": []}}, "'sentences' is missing"),
    ],
)
def test_a_wrong_row_names_its_field(tmp_path, row, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(UserError, match=message):
        SearchQA(data=str(path)).reset(0)


def test_wrong_options():
    with pytest.raises(UserError, match="not both"):
        SearchQA(corpus="a.jsonl", retriever="http://x")
    with pytest.raises(UserError, match="top_k"):
        SearchQA(top_k=0)
