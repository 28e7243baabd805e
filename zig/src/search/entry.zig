//! Where a search of the graph begins: at the medoid, and at the best of the entry points near the query.
const builtin = @import("builtin");
const lists = @import("list.zig");
const on_disk = @import("on_disk.zig");
const shared_file = @import("shared.zig");
const Search = @import("search_state.zig").Search;

/// Entry points that a search starts at.
const best_max = 8;
const centers_looked_max = 64;

const Near = struct { distance: f32, center: u32 };

pub fn enter(search: *Search) void {
    const shared = search.shared;
    var best: [best_max]lists.Candidate = undefined;
    var best_count: u32 = 0;
    var centers: [centers_looked_max]Near = undefined;
    var looked: u32 = 0;
    for (nearest_centers(search, &centers)) |near| {
        if (looked >= shared_file.entries_looked) break;
        var at = shared.entry_starts[near.center];
        const end = shared.entry_starts[near.center + 1];
        looked += end - at;
        while (at < end) {
            const count: u32 = @min(Search.fresh_max, end - at);
            search.query.estimate(&shared.entry_codes, shared.entry_places[at..][0..count], search.distances[0..count]);
            for (search.distances[0..count], shared.entries[at..][0..count]) |distance, vertex| {
                @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
                if (best_count == best_max and distance >= best[best_max - 1].distance) continue;
                if (best_count < best_max) best_count += 1;
                var place = best_count - 1;
                while (place > 0 and best[place - 1].distance > distance) : (place -= 1) best[place] = best[place - 1];
                best[place] = .{ .distance = distance, .tagged = vertex };
            }
            at += count;
        }
    }
    search.cost.estimates += looked;
    for (best[0..best_count]) |candidate| search.meet(candidate.vertex(), candidate.distance);
    if (search.state == .disk) on_disk.look_around(search, best[0..best_count]);
    const medoid = [1]u32{shared.reader.header.entry_vertex};
    search.query.estimate(&shared.reader.codes, &medoid, search.distances[0..1]);
    search.meet(medoid[0], search.distances[0]);
}

/// Of what the query was prepared with anyway; the nearest first.
fn nearest_centers(search: *const Search, out: *[centers_looked_max]Near) []const Near {
    const norms2 = search.shared.center_norms2;
    var count: u32 = 0;
    for (norms2, search.query.terms[0..norms2.len], 0..) |norm2, term, center| {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const distance = norm2 + term;
        if (count == out.len and distance >= out[count - 1].distance) continue;
        if (count < out.len) count += 1;
        var place = count - 1;
        while (place > 0 and out[place - 1].distance > distance) : (place -= 1) out[place] = out[place - 1];
        out[place] = .{ .distance = distance, .center = @intCast(center) };
    }
    return out[0..count];
}
