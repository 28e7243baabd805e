//! Batched best-first search: a warp answers a query. The list of candidates is in shared memory, sorted; so is a set of vertices
//! met before. That set forgets: a bucket holds the last two vertices of many. A vertex that comes again gets the same estimate, so the
//! list finds it, or refuses it as it did before. So the answer is that of a set that forgets nothing.
//!
//! A step
//!
//!   choose   the nearest candidates whose links were not followed, as many as a warp reads the links of at once
//!   meet     their neighbors, less those met before
//!   estimate teams of lanes multiply codes with the query
//!   insert   the near ones into the list
//!
//! goes on until the list has nothing to follow, or nothing that is near enough (search/list.zig, `Stop`).
const std = @import("std");
const layout = @import("../layout.zig");
const warp = @import("../warp.zig");
const codes = @import("codes.zig");
const U = warp.U;
const I = warp.I;
const F = warp.F;
const K = warp.K;
const B = warp.B;
const splat = warp.splat;
const lanes = layout.lanes;
const none = layout.none;

/// `quant.Candidate.none`
const no_key = std.math.maxInt(i64);

/// A key of `quant.Candidate`; lanes have its parts.
inline fn key_of(vertex: U, distance: F) K {
    const at: I = @bitCast(distance + splat(F, 0)); // one zero only
    return @as(K, ordered(at)) << shift64(32) | @as(K, vertex) << shift64(1);
}

inline fn ordered(value: anytype) @TypeOf(value) {
    const T = @TypeOf(value);
    if (comptime T == i32) return value ^ ((value >> 31) & std.math.maxInt(i32));
    return value ^ ((value >> @splat(31)) & splat(T, std.math.maxInt(i32)));
}

inline fn distance_of(key: i64) f32 {
    return @bitCast(ordered(@as(i32, @truncate(key >> 32))));
}

inline fn distances_of(keys: K) F {
    return @bitCast(ordered(@as(I, @truncate(keys >> shift64(32)))));
}

inline fn vertices_of(keys: K) U {
    return @truncate(@as(if (warp.on_device) u64 else @Vector(lanes, u64), @bitCast(keys & splat(K, 0xffff_ffff))) >> shift64(1));
}

inline fn shift64(comptime by: u6) if (warp.on_device) u6 else @Vector(lanes, u6) {
    return if (warp.on_device) by else @splat(by);
}

inline fn shift32(by: u32) if (warp.on_device) u5 else @Vector(lanes, u5) {
    return if (warp.on_device) @intCast(by) else @splat(@intCast(by));
}

/// Answers query number `query`. `room` is shared memory of `batch.warp_bytes()`, aligned to 16.
pub inline fn run(index: *const layout.Index, batch: *const layout.Batch, query: u32, room: warp.Shared(u8)) void {
    @setEvalBranchQuota(1 << 16);
    var walk: Walk = .init(index, batch, query, room);
    var entering = true;
    // Estimates are in one place, since they are most of the code.
    while (true) {
        var count: u32 = 0;
        if (entering) {
            count = walk.gather();
            if (count == 0) {
                entering = false;
                count = walk.end_entry();
            }
        } else {
            if (walk.linked >= index.link_stride and !walk.choose()) break;
            count = walk.meet();
            if (count == 0) continue;
        }
        walk.offer(count);
    }
    walk.write(query);
}

const Walk = struct {
    index: *const layout.Index,
    batch: *const layout.Batch,
    items: warp.Shared(i64),
    /// Candidates that enter the list, and their places in it.
    newcomers: warp.Shared(i64),
    places: warp.Shared(u32),
    /// Vertices to follow, or to estimate.
    ids: warp.Shared(u32),
    /// Buckets of two vertices, the one that came last in the lower half.
    visited: warp.Shared(i64),
    visited_shift: u32,

    /// The first words of the query's plane that a lane multiplies with: most often all.
    plane: [codes.fields]U,
    plane_at: u32,
    terms: warp.Global(f32),
    scale: f32,
    bias: f32,
    excluded: u32,
    groups: u32,
    /// Lanes that multiply one code together.
    team: u32,

    /// The entry points of the center that was taken last which are still to be looked at.
    entry: u32 = 0,
    entry_end: u32 = 0,
    looked: u32 = 0,
    centers: u32 = 0,

    limit: u32 = layout.entries_best,
    /// `Batch.stop_followed`, once there is a list.
    followed: u32 = none,
    len: u32 = 0,
    /// No candidate before this place is to be followed.
    cursor: u32 = 0,
    /// Vertices that `choose` found, in lanes: as many lanes as there are links of each. Links before this place were met.
    vertex: U = splat(U, 0),
    chosen: u32 = 0,
    linked: u32 = none,
    expanded: u32 = 0,
    estimates: u32 = 0,

    inline fn init(index: *const layout.Index, batch: *const layout.Batch, query: u32, room: warp.Shared(u8)) Walk {
        const own = warp.at_address(layout.Query, batch.queries)[query];
        const slots = batch.visited_slots;
        const listed = std.mem.alignForward(u32, batch.list_size, lanes);
        const groups = (index.dim + layout.group_dims - 1) / layout.group_dims;
        const team: u32 = if (groups > 4) 8 else if (groups > 2) 4 else groups;
        const plane_at = query * layout.plane_words_of(index.dim);
        const member = warp.lane() & splat(U, team - 1);
        const first = warp.select(U, member < splat(U, groups), member, splat(U, 0));
        const walk: Walk = .{
            .index = index,
            .batch = batch,
            .items = @ptrCast(@alignCast(room)),
            .newcomers = @ptrCast(@alignCast(room + 8 * listed)),
            .places = @ptrCast(@alignCast(room + 8 * (listed + lanes))),
            .ids = @ptrCast(@alignCast(room + 8 * (listed + lanes) + 4 * lanes)),
            .visited = @ptrCast(@alignCast(room + 8 * (listed + lanes) + 8 * lanes)),
            .visited_shift = 32 - @as(u32, @ctz(slots / 2)),
            .plane = codes.load_plane(batch.planes, splat(U, plane_at) + first * splat(U, codes.fields)),
            .plane_at = plane_at,
            .terms = warp.at_address(f32, batch.terms) + @as(usize, query) * index.center_count,
            .scale = own.scale,
            .bias = own.bias,
            .excluded = own.excluded,
            .groups = groups,
            .team = team,
        };
        walk.rank_centers();
        return walk;
    }

    // ---- entry ----
    //
    // The best of the entry points around the centers nearest to the query, and the medoid (search/query.zig, `enter_graph`).

    /// Ranks of centers by their distance are where the visited set will be.
    inline fn ranks(self: *const Walk) warp.Shared(u32) {
        return @ptrCast(self.visited);
    }

    inline fn rank_centers(self: *const Walk) void {
        const norms2 = warp.at_address(f32, self.index.center_norms2);
        var at: u32 = 0;
        while (at < self.index.center_count) : (at += lanes) {
            const center = warp.lane() + splat(U, at);
            const there = center < splat(U, self.index.center_count);
            const bits: I = @bitCast(warp.load(F, norms2, center, there) + warp.load(F, self.terms, center, there));
            const number: U = @bitCast(ordered(bits) ^ splat(I, std.math.minInt(i32)));
            warp.store(U, self.ranks(), center, warp.select(U, there, number, splat(U, none)), splat(B, true));
        }
        warp.sync();
    }

    /// The nearest center that was not taken yet, of equal ones the first.
    inline fn take_center(self: *Walk) u32 {
        const count = self.index.center_count;
        var nearest: u32 = none;
        var found: u32 = 0;
        var at: u32 = 0;
        while (at < count) : (at += lanes) {
            const own = warp.load(U, self.ranks(), warp.lane() + splat(U, at), splat(B, true));
            const here = warp.least(own);
            if (here < nearest) {
                nearest = here;
                found = at + @ctz(warp.ballot(own == splat(U, here)));
            }
        }
        warp.store(U, self.ranks(), splat(U, found), splat(U, none), warp.first(1));
        warp.sync();
        return found;
    }

    /// Writes the next entry points to `ids`; 0 where there are no more.
    inline fn gather(self: *Walk) u32 {
        const index = self.index;
        const starts = warp.at_address(u32, index.entry_starts);
        var count: u32 = 0;
        while (count < lanes) {
            if (self.entry == self.entry_end) {
                if (self.looked >= layout.entries_looked or self.centers >= layout.centers_looked_max or self.centers >= index.center_count) break;
                const center = self.take_center();
                self.centers += 1;
                self.entry = starts[center];
                self.entry_end = starts[center + 1];
                self.looked += self.entry_end - self.entry;
                continue;
            }
            const some = @min(self.entry_end - self.entry, lanes - count);
            const number = warp.lane() -% splat(U, count);
            const own = number < splat(U, some);
            warp.store(U, self.ids, warp.lane(), warp.load(U, warp.at_address(u32, index.entries), splat(U, self.entry) +% number, own), own);
            self.entry += some;
            count += some;
        }
        warp.sync();
        return count;
    }

    /// The entry points that were best begin the list; the medoid is in `ids`.
    inline fn end_entry(self: *Walk) u32 {
        self.limit = self.batch.list_size;
        self.followed = self.batch.stop_followed;
        self.len = @min(self.len, self.limit);
        var at: u32 = 0;
        while (at < self.batch.visited_slots) : (at += lanes) warp.store(U, self.ranks(), splat(U, at) + warp.lane(), splat(U, none), splat(B, true));
        warp.sync();
        const own = warp.first(self.len);
        self.remember(vertices_of(warp.load(K, self.items, warp.lane(), own)), own);
        self.remember(splat(U, self.index.entry_vertex), warp.first(1));
        warp.store(U, self.ids, warp.lane(), splat(U, self.index.entry_vertex), warp.first(1));
        warp.sync();
        return 1;
    }

    // ---- steps ----

    /// Vertices that one step follows.
    inline fn chosen_max(self: *const Walk) u32 {
        const stride = self.index.link_stride;
        return if (stride >= lanes) 1 else lanes / stride;
    }

    /// Candidates that are farther are not followed.
    inline fn reach(self: *const Walk) f32 {
        const batch = self.batch;
        if (self.len < self.followed) return std.math.inf(f32);
        const sure = distance_of(self.items[self.followed - 1]);
        return @max(sure, batch.stop_share * distance_of(self.items[batch.stop_k - 1]));
    }

    /// Chooses the vertices to follow next; false where there is none.
    inline fn choose(self: *Walk) bool {
        const far = self.reach();
        var at = self.cursor & ~@as(u32, lanes - 1);
        while (at < self.len) : (at += lanes) {
            const place = splat(U, at) + warp.lane();
            const there = place < splat(U, self.len);
            const item = warp.load(K, self.items, place, there);
            const open = warp.both(there, (item & splat(K, 1)) == splat(K, 0));
            if (warp.ballot(open) == 0) {
                self.cursor = at + lanes;
                continue;
            }
            const near = warp.both(open, distances_of(item) <= splat(F, far));
            const mask = warp.ballot(near);
            if (mask == 0) return false;
            self.cursor = at + @ctz(mask);
            self.chosen = @min(@popCount(mask), self.chosen_max());
            self.expanded += self.chosen;
            const number = warp.rank(mask);
            const taken = warp.both(near, number < splat(U, self.chosen));
            warp.store(U, self.ids, number, vertices_of(item), taken);
            warp.store(K, self.items, place, item | splat(K, 1), taken);
            warp.sync();
            self.vertex = warp.load(U, self.ids, self.number_of_lane(), self.number_of_lane() < splat(U, self.chosen));
            self.linked = 0;
            warp.sync();
            return true;
        }
        return false;
    }

    /// Which of the chosen vertices a lane reads a link of.
    inline fn number_of_lane(self: *const Walk) U {
        const stride = self.index.link_stride;
        return if (stride >= lanes) splat(U, 0) else warp.lane() >> shift32(@ctz(stride));
    }

    /// Writes the neighbors of the chosen vertices that were not met before to `ids`, a part of them where lists are long.
    inline fn meet(self: *Walk) u32 {
        const stride = self.index.link_stride;
        const place = (warp.lane() & splat(U, @min(stride, lanes) - 1)) + splat(U, self.linked);
        const at = warp.times(self.vertex, stride) + @as(warp.Address, place);
        const own = self.number_of_lane() < splat(U, self.chosen);
        self.linked += lanes;
        const ids = warp.select(U, own, warp.load_far(U, warp.at_address(u32, self.index.links), at, own), splat(U, none));
        const valid = warp.both(ids != splat(U, none), ids != splat(U, self.excluded));
        const bucket = self.bucket_of(ids);
        const held = warp.load(K, self.visited, bucket, valid);
        var fresh = warp.both(valid, warp.both(warp.low(held) != ids, warp.high(held) != ids));
        // Links of one vertex differ.
        if (self.chosen > 1) fresh = warp.both(fresh, warp.is_first_of_same(ids));
        const mask = warp.ballot(fresh);
        warp.store(K, self.visited, bucket, warp.pair(ids, warp.low(held)), fresh);
        warp.store(U, self.ids, warp.rank(mask), ids, fresh);
        warp.sync();
        return @popCount(mask);
    }

    inline fn bucket_of(self: *const Walk, ids: U) U {
        return ids *% splat(U, 0x9e37_79b1) >> shift32(self.visited_shift);
    }

    /// Into an empty set.
    inline fn remember(self: *Walk, ids: U, where: B) void {
        warp.store(K, self.visited, self.bucket_of(ids), warp.pair(ids, splat(U, none)), where);
    }

    // ---- estimates ----

    /// The estimates of `ids` in the first `count` lanes; ids of the others are those of any vertices.
    inline fn estimate(self: *Walk, ids: U, count: u32) F {
        const index = self.index;
        @setEvalBranchQuota(1 << 16);
        const always = splat(B, true);
        const factor = warp.load(U, warp.at_address(u32, index.factors), ids, always);
        const center = warp.load_bytes(warp.at_address(u8, index.center_ids), ids);
        const term = warp.load(F, self.terms, center, always);
        var dots = splat(I, 0);
        switch (index.bits) {
            inline 1...layout.bits_max => |bits| dots = self.dot(bits, ids, count),
            else => {},
        }
        self.estimates += count;
        const offset: F = @bitCast((factor & splat(U, 0xffff)) << shift32(15));
        const f: F = @bitCast((factor >> shift32(16)) << shift32(15));
        return offset + term - f * (@as(F, @floatFromInt(dots)) * splat(F, self.scale) - splat(F, self.bias));
    }

    inline fn dot(self: *const Walk, comptime bits: u32, ids: U, count: u32) I {
        @setEvalBranchQuota(1 << 16);
        const index = self.index;
        const team = self.team;
        const team_shift: u32 = @ctz(team);
        const together = lanes / team;
        const member = warp.lane() & splat(U, team - 1);
        const number = warp.lane() >> shift32(team_shift);
        var dots = splat(I, 0);
        var from: u32 = 0;
        while (from < count) : (from += together) {
            const vertex = warp.shuffle(ids, splat(U, from) + number);
            const code = warp.times(vertex, index.code_stride);
            var sum = self.dot_group(bits, code, member, self.plane);
            var first = team;
            while (first < self.groups) : (first += team) {
                const group = member + splat(U, first);
                const there = group < splat(U, self.groups);
                const place = warp.select(U, there, group, splat(U, 0));
                const plane = codes.load_plane(self.batch.planes, splat(U, self.plane_at) + place * splat(U, codes.fields));
                sum +%= self.dot_group(bits, code, group, plane);
            }
            const all = warp.team_sum(sum, team);
            const place = warp.lane() -% splat(U, from);
            const handed: I = @bitCast(warp.shuffle(@bitCast(all), place << shift32(team_shift) & splat(U, lanes - 1)));
            dots = warp.select(I, place < splat(U, together), handed, dots);
        }
        return dots;
    }

    /// 0 where there is no such group.
    inline fn dot_group(self: *const Walk, comptime bits: u32, code: warp.Address, group: U, plane: [codes.fields]U) I {
        @setEvalBranchQuota(1 << 16);
        const there = group < splat(U, self.groups);
        const place = warp.select(U, there, group, splat(U, 0));
        const sum = codes.dot(bits, self.index.codes, code + warp.times(place, 4 * bits), plane);
        return warp.select(I, there, sum, splat(I, 0));
    }

    // ---- the list ----

    /// Estimates the first `count` of `ids` and puts those into the list that are near enough.
    inline fn offer(self: *Walk, count: u32) void {
        @setEvalBranchQuota(1 << 16);
        const own = warp.first(count);
        const ids = warp.load(U, self.ids, warp.lane(), own);
        const distance = self.estimate(ids, count);
        const wanted = warp.both(own, ids != splat(U, self.excluded));
        const near = warp.both(wanted, distance < splat(F, self.bound()));
        if (warp.ballot(near) == 0) return;
        self.insert(key_of(ids, distance), near);
    }

    /// A distance must be below this to enter.
    inline fn bound(self: *const Walk) f32 {
        const far = self.reach();
        return if (self.len < self.limit) far else @min(far, distance_of(self.items[self.len - 1]));
    }

    inline fn insert(self: *Walk, keys: K, near: B) void {
        const place = self.place_of(keys);
        const there = warp.load(K, self.items, place, place < splat(U, self.len));
        // A vertex that the visited set forgot.
        const same = warp.both(place < splat(U, self.len), (there | splat(K, 1)) == (keys | splat(K, 1)));
        const enters = warp.both(near, warp.not(same));
        const mask = warp.ballot(enters);
        if (mask == 0) return;
        const number = warp.rank(mask);
        warp.store(K, self.newcomers, number, keys, enters);
        warp.store(U, self.places, number, place, enters);
        warp.sync();
        const count: u32 = @popCount(mask);
        const lowest = warp.least(warp.select(U, enters, place, splat(U, none)));
        self.move(lowest, count);
        var before = splat(U, 0);
        var i: u32 = 0;
        while (i < count) : (i += 1) before += warp.select(U, splat(K, self.newcomers[i]) < keys, splat(U, 1), splat(U, 0));
        const to = place + before;
        warp.store(K, self.items, to, keys, warp.both(enters, to < splat(U, self.limit)));
        warp.sync();
        self.len = @min(self.limit, self.len + count);
        self.cursor = @min(self.cursor, lowest);
    }

    /// How many items are before each key.
    inline fn place_of(self: *const Walk, keys: K) U {
        var low = splat(U, 0);
        // Halves of what is left, rounded up.
        var left = self.len;
        while (left > 0) {
            const half = (left + 1) / 2;
            const at = low + splat(U, half - 1);
            const inside = at < splat(U, self.len);
            const item = warp.load(K, self.items, at, inside);
            low = warp.select(U, warp.both(inside, item < keys), at + splat(U, 1), low);
            left -= half;
        }
        return low;
    }

    /// Moves the items from `lowest` on up by the number of newcomers that come before each, the last ones first.
    inline fn move(self: *Walk, lowest: u32, count: u32) void {
        if (lowest >= self.len) return;
        var at = self.len - 1 & ~@as(u32, lanes - 1);
        while (true) : (at -= lanes) {
            const place = splat(U, at) + warp.lane();
            const moved = warp.both(place < splat(U, self.len), place >= splat(U, lowest));
            const item = warp.load(K, self.items, place, moved);
            var to = place;
            var i: u32 = 0;
            while (i < count) : (i += 1) to += warp.select(U, splat(U, self.places[i]) <= place, splat(U, 1), splat(U, 0));
            warp.sync();
            warp.store(K, self.items, to, item, warp.both(moved, to < splat(U, self.limit)));
            warp.sync();
            if (at <= lowest) return;
        }
    }

    // ---- the end ----

    inline fn write(self: *const Walk, query: u32) void {
        const batch = self.batch;
        const out = warp.at_address(i64, batch.candidates) + @as(usize, query) * batch.list_size;
        var at: u32 = 0;
        while (at < batch.list_size) : (at += lanes) {
            const place = splat(U, at) + warp.lane();
            const there = place < splat(U, self.len);
            const item = warp.select(K, there, warp.load(K, self.items, place, there), splat(K, no_key));
            warp.store(K, out, place, item, place < splat(U, batch.list_size));
        }
        const counters = warp.at_address(layout.Counters, batch.counters);
        if (!warp.on_device) {
            counters[query] = .{ .len = self.len, .expanded = self.expanded, .estimates = self.estimates };
        } else if (warp.lane() == 0) counters[query] = .{ .len = self.len, .expanded = self.expanded, .estimates = self.estimates };
    }
};
