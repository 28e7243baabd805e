//! Links on disk: cache-aware beam search (VeloANN, algorithm 2) over the same state. The nearest candidates that were
//! not followed form the look-ahead set; pages of those that are not at hand are asked for, and meanwhile the nearest
//! one at hand is followed. A query waits only when none of the set is at hand.
//!
//! Beyond the paper: every record of a page that was read is scored and may become a candidate, and a page stays at
//! hand for as long as its query runs (up to `held_max`), so that a neighbor on the same page costs no second read.
const std = @import("std");
const layout = @import("layout");
const state = @import("search_state.zig");
const Search = state.Search;

pub fn step(search: *Search) state.PageError!state.Want {
    const directory = &search.shared.reader.directory;
    while (true) {
        // Failing vertices lead on, but what they lead to can only be read from disk: they are followed like others.
        const width = search.parameters.beam_width;
        var seen: u32 = 0;
        var at_hand: ?u32 = null;
        var place = search.list.nearest_unexpanded() orelse return .done;
        while (place < search.list.len and seen < width) : (place += 1) {
            const candidate = search.list.items[place];
            if (candidate.expanded()) continue;
            seen += 1;
            const vertex = candidate.vertex();
            const page = directory.page_of(vertex);
            if (find_held(search, page) != null or cached(search, vertex)) {
                if (at_hand == null) at_hand = place;
                continue;
            }
            if (search.wanted_count == search.wanted.len or !search.pages.insert(page)) continue; // on its way, or too many
            search.wanted[search.wanted_count] = page;
            search.wanted_count += 1;
        }
        const chosen = at_hand orelse {
            search.counters.rounds += 1;
            return .pages;
        };
        search.list.mark_expanded(chosen);
        try follow_at_hand(search, search.list.items[chosen].vertex());
    }
}

fn find_held(search: *const Search, page: u32) ?*const state.Held {
    for (search.held_pages()) |*held| {
        if (held.page == page) return held;
    }
    return null;
}

fn cached(search: *const Search, vertex: u32) bool {
    const cache = search.shared.cache orelse return false;
    return cache.contains(vertex);
}

fn follow_at_hand(search: *Search, vertex: u32) state.PageError!void {
    const reader = search.shared.reader;
    search.counters.expanded += 1;
    if (find_held(search, reader.directory.page_of(vertex))) |held| {
        const list = try held.view.list(vertex - held.view.first_vertex);
        const ids = reader.adjacency.decode(vertex, list.bytes, list.length, reader.n(), &search.neighbors) catch return error.BadList;
        return search.follow(ids);
    }
    const cache = search.shared.cache.?;
    // Another query's insertion may have taken the slot since the look: then the vertex is a candidate again.
    const pin = cache.peek(vertex) orelse return search.unmark(vertex);
    defer cache.release(pin);
    const found = search.score_cached(vertex, pin.bytes());
    const ids = reader.adjacency.decode(vertex, found.list.ptr, @intCast(found.list.len), reader.n(), &search.neighbors) catch return error.BadList;
    search.follow(ids);
}
