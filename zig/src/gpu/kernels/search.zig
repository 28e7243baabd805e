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

/// query: a vector, prepared on the host, against the codes of an index.
/// vertex: `Query.excluded` itself, against codes that a graph is built with (`quant.BuildCodes`), over the graph so far. Nothing is
/// entered but the medoid. The vertices that were followed are written too: pruning takes those.
pub const Kind = enum { query, vertex };

/// Answers query number `query`. `shared` is shared memory of `batch.warp_bytes()`, aligned to 16.
pub inline fn run(comptime kind: Kind, index: *const layout.Index, batch: *const layout.Batch, query: u32, shared: warp.Shared(u8)) void {
    @setEvalBranchQuota(1 << 16);
    var walk: Walk(kind) = .init(index, batch, query, shared);
    var entering = true;
    // Estimates are in one place, since they are most of the code.
    while (true) {
        var count: u32 = 0;
        if (entering) {
            if (kind == .query) count = walk.gather();
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

fn Walk(comptime kind: Kind) type {
    return struct {
        const Self = @This();

        /// The values of the query for estimates.
        const Own = switch (kind) {
            .query => struct { plane_at: u32, terms: warp.Global(f32), scale: f32, bias: f32 },
            .vertex => struct { code: u64, norm2: f32, f: f32, bias: i32, followed: warp.Global(i64) },
        };

        index: *const layout.Index,
        batch: *const layout.Batch,
        items: warp.Shared(i64),
        /// Candidates that enter the list.
        newcomers: warp.Shared(i64),
        /// Vertices to follow, or to estimate.
        ids: warp.Shared(u32),
        /// Buckets of two vertices, the one that came last in the lower half.
        visited: warp.Shared(i64),
        visited_shift: u32,

        /// The first words of the query's plane that a lane multiplies with: most often all.
        plane: [codes.fields]U,
        own: Own,
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

        inline fn init(index: *const layout.Index, batch: *const layout.Batch, query: u32, shared: warp.Shared(u8)) Self {
            const head = warp.at_address(layout.Query, batch.queries)[query];
            const slots = batch.visited_slots;
            const listed = std.mem.alignForward(u32, batch.list_size, lanes);
            const groups = (index.dim + layout.group_dims - 1) / layout.group_dims;
            const team: u32 = if (groups > 4) 8 else if (groups > 2) 4 else groups;
            const member = warp.lane() & splat(U, team - 1);
            const first = warp.select(U, member < splat(U, groups), member, splat(U, 0));
            var walk: Self = .{
                .index = index,
                .batch = batch,
                .items = @ptrCast(@alignCast(shared)),
                .newcomers = @ptrCast(@alignCast(shared + 8 * listed)),
                .ids = @ptrCast(@alignCast(shared + 8 * (listed + lanes))),
                .visited = @ptrCast(@alignCast(shared + 8 * (listed + lanes) + 4 * lanes)),
                .visited_shift = 32 - @as(u32, @ctz(slots / 2)),
                .plane = undefined,
                .own = switch (kind) {
                    .query => .{
                        .plane_at = query * layout.plane_words_of(index.dim),
                        .terms = warp.at_address(f32, batch.terms) + @as(usize, query) * index.center_count,
                        .scale = head.scale,
                        .bias = head.bias,
                    },
                    .vertex => of_vertex(index, batch, query, head.excluded),
                },
                .excluded = head.excluded,
                .groups = groups,
                .team = team,
            };
            walk.plane = walk.load_plane(first);
            if (kind == .query) walk.rank_centers();
            return walk;
        }

        inline fn of_vertex(index: *const layout.Index, batch: *const layout.Batch, query: u32, vertex: u32) Own {
            const factors = warp.at_address(layout.PairFactors, index.factors)[vertex];
            const dim: i32 = @intCast(index.dim);
            return .{
                .code = index.codes + @as(u64, vertex) * index.code_stride,
                .norm2 = factors.norm2,
                .f = factors.f,
                .bias = -255 * (factors.sum - 128 * dim) - 255 * @divExact(dim, 2),
                .followed = warp.at_address(i64, batch.followed) + @as(usize, query) * batch.followed_max,
            };
        }

        /// A group of the query as bytes with a sign.
        inline fn load_plane(self: *const Self, group: U) [codes.fields]U {
            if (kind == .query) return codes.load_plane(self.batch.planes, splat(U, self.own.plane_at) + group * splat(U, codes.fields));
            var words = codes.load_plane(self.own.code, group * splat(U, codes.fields));
            // The last group may be a half, behind which another code begins.
            const whole = (group + splat(U, 1)) * splat(U, layout.group_dims) <= splat(U, self.index.dim);
            inline for (&words, 0..) |*word, i| {
                word.* ^= splat(U, 0x8080_8080);
                if (i >= codes.fields / 2) word.* = warp.select(U, whole, word.*, splat(U, 0));
            }
            return words;
        }

        // ---- entry ----
        //
        // The best of the entry points around the centers nearest to the query, and the medoid (search/query.zig, `enter_graph`).

        /// Ranks of centers by their distance are where the visited set will be.
        inline fn ranks(self: *const Self) warp.Shared(u32) {
            return @ptrCast(self.visited);
        }

        inline fn rank_centers(self: *const Self) void {
            const norms2 = warp.at_address(f32, self.index.center_norms2);
            var at: u32 = 0;
            while (at < self.index.center_count) : (at += lanes) {
                const center = warp.lane() + splat(U, at);
                const there = center < splat(U, self.index.center_count);
                const bits: I = @bitCast(warp.load(F, norms2, center, there) + warp.load(F, self.own.terms, center, there));
                const number: U = @bitCast(ordered(bits) ^ splat(I, std.math.minInt(i32)));
                warp.store(U, self.ranks(), center, warp.select(U, there, number, splat(U, none)), splat(B, true));
            }
            warp.sync();
        }

        /// The nearest center that was not taken yet, of equal ones the first.
        inline fn take_center(self: *Self) u32 {
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
        inline fn gather(self: *Self) u32 {
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
        inline fn end_entry(self: *Self) u32 {
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
        inline fn chosen_max(self: *const Self) u32 {
            const stride = self.index.link_stride;
            return if (stride >= lanes) 1 else @as(u32, lanes) >> @intCast(@ctz(stride));
        }

        /// Candidates that are farther are not followed.
        inline fn reach(self: *const Self) f32 {
            const batch = self.batch;
            if (self.len < self.followed) return std.math.inf(f32);
            const sure = distance_of(self.items[self.followed - 1]);
            return @max(sure, batch.stop_share * distance_of(self.items[batch.stop_k - 1]));
        }

        /// Chooses the vertices to follow next; false where there is none.
        inline fn choose(self: *Self) bool {
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
                const number = warp.rank(mask);
                const taken = warp.both(near, number < splat(U, self.chosen));
                warp.store(U, self.ids, number, vertices_of(item), taken);
                warp.store(K, self.items, place, item | splat(K, 1), taken);
                if (kind == .vertex) {
                    const to = splat(U, self.expanded) + number;
                    warp.store(K, self.own.followed, to, item, warp.both(taken, to < splat(U, self.batch.followed_max)));
                }
                self.expanded += self.chosen;
                warp.sync();
                self.vertex = warp.load(U, self.ids, self.number_of_lane(), self.number_of_lane() < splat(U, self.chosen));
                self.linked = 0;
                warp.sync();
                return true;
            }
            return false;
        }

        /// Which of the chosen vertices a lane reads a link of.
        inline fn number_of_lane(self: *const Self) U {
            const stride = self.index.link_stride;
            return if (stride >= lanes) splat(U, 0) else warp.lane() >> shift32(@ctz(stride));
        }

        /// Writes the neighbors of the chosen vertices that were not met before to `ids`, a part of them where lists are long.
        inline fn meet(self: *Self) u32 {
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

        inline fn bucket_of(self: *const Self, ids: U) U {
            return ids *% splat(U, 0x9e37_79b1) >> shift32(self.visited_shift);
        }

        /// Into an empty set.
        inline fn remember(self: *Self, ids: U, where: B) void {
            warp.store(K, self.visited, self.bucket_of(ids), warp.pair(ids, splat(U, none)), where);
        }

        // ---- estimates ----

        /// The estimates of `ids` in the first `count` lanes; ids of the others are those of any vertices.
        inline fn estimate(self: *Self, ids: U, count: u32) F {
            const index = self.index;
            @setEvalBranchQuota(1 << 16);
            const always = splat(B, true);
            self.estimates += count;
            if (kind == .vertex) {
                const factors = warp.at_address(f32, index.factors);
                const at = warp.times(ids, 3);
                const norm2 = warp.load_far(F, factors, at, always);
                const f = warp.load_far(F, factors, at + splat(warp.Address, 1), always);
                const sum: I = @bitCast(warp.load_far(F, factors, at + splat(warp.Address, 2), always));
                const dots = self.dot(8, ids, count);
                const inner: F = @floatFromInt(dots + dots + sum + splat(I, self.own.bias));
                const distance = @max(splat(F, 0), norm2 + splat(F, self.own.norm2) - splat(F, self.own.f) * f * inner);
                return if (index.product == 0) distance else distance - (splat(F, self.own.norm2) + norm2);
            }
            const factor = warp.load(U, warp.at_address(u32, index.factors), ids, always);
            const center = warp.load_bytes(warp.at_address(u8, index.center_ids), ids);
            const term = warp.load(F, self.own.terms, center, always);
            var dots = splat(I, 0);
            switch (index.bits) {
                inline 1...layout.bits_max => |bits| dots = self.dot(bits, ids, count),
                else => {},
            }
            const offset: F = @bitCast((factor & splat(U, 0xffff)) << shift32(15));
            const f: F = @bitCast((factor >> shift32(16)) << shift32(15));
            return offset + term - f * (@as(F, @floatFromInt(dots)) * splat(F, self.own.scale) - splat(F, self.own.bias));
        }

        inline fn dot(self: *const Self, comptime bits: u32, ids: U, count: u32) I {
            @setEvalBranchQuota(1 << 16);
            const index = self.index;
            const team = self.team;
            const team_shift: u32 = @ctz(team);
            const together = @as(u32, lanes) >> @intCast(team_shift);
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
                    const plane = self.load_plane(place);
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
        inline fn dot_group(self: *const Self, comptime bits: u32, code: warp.Address, group: U, plane: [codes.fields]U) I {
            @setEvalBranchQuota(1 << 16);
            const there = group < splat(U, self.groups);
            const place = warp.select(U, there, group, splat(U, 0));
            const sum = codes.dot(bits, self.index.codes, code + warp.times(place, 4 * bits), plane);
            return warp.select(I, there, sum, splat(I, 0));
        }

        // ---- the list ----

        /// Estimates the first `count` of `ids` and puts those into the list that are near enough.
        inline fn offer(self: *Self, count: u32) void {
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
        inline fn bound(self: *const Self) f32 {
            const far = self.reach();
            return if (self.len < self.limit) far else @min(far, distance_of(self.items[self.len - 1]));
        }

        inline fn insert(self: *Self, keys: K, near: B) void {
            const place = self.place_of(keys);
            const there = warp.load(K, self.items, place, place < splat(U, self.len));
            // A vertex that the visited set forgot.
            const same = warp.both(place < splat(U, self.len), (there | splat(K, 1)) == (keys | splat(K, 1)));
            const enters = warp.both(near, warp.not(same));
            const mask = warp.ballot(enters);
            if (mask == 0) return;
            warp.store(K, self.newcomers, warp.rank(mask), keys, enters);
            warp.sync();
            const count: u32 = @popCount(mask);
            var to = place;
            var i: u32 = 0;
            while (i < count) : (i += 1) to += warp.select(U, splat(K, self.newcomers[i]) < keys, splat(U, 1), splat(U, 0));
            const lowest = warp.least(warp.select(U, enters, place, splat(U, none)));
            const len = @min(self.limit, self.len + count);
            if (lowest < self.len) self.make_room(to, enters, lowest, len);
            warp.store(K, self.items, to, keys, warp.both(enters, to < splat(U, self.limit)));
            warp.sync();
            self.len = len;
            self.cursor = @min(self.cursor, lowest);
        }

        /// How many items are before each key.
        inline fn place_of(self: *const Self, keys: K) U {
            var low = splat(U, 0);
            // Halves of the rest, rounded up.
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

        /// Moves the items from the place `lowest` on behind the newcomers that come before them, so that places `to` are free. The
        /// last ones first: an item moves by less than a warp's lanes.
        inline fn make_room(self: *Self, to: U, enters: B, lowest: u32, len: u32) void {
            var at = len - 1 & ~@as(u32, lanes - 1);
            while (true) : (at -= lanes) {
                const here = warp.both(enters, to >> shift32(5) == splat(U, at / lanes));
                const taken = warp.either_of(warp.select(U, here, splat(U, 1) << warp.shift_of(to), splat(U, 0)));
                const before: u32 = @popCount(warp.ballot(warp.both(enters, to < splat(U, at))));
                const place = splat(U, at) + warp.lane();
                const free = (splat(U, taken) >> warp.shift_of(warp.lane()) & splat(U, 1)) == splat(U, 0);
                const moved = warp.both(free, place < splat(U, len));
                const item = warp.load(K, self.items, place -% (splat(U, before) + warp.rank(taken)), moved);
                warp.sync();
                warp.store(K, self.items, place, item, moved);
                warp.sync();
                if (at <= lowest) return;
            }
        }

        // ---- the end ----

        inline fn write(self: *const Self, query: u32) void {
            const batch = self.batch;
            if (kind == .vertex) return self.write_counters(query);
            const out = warp.at_address(i64, batch.candidates) + @as(usize, query) * batch.list_size;
            var at: u32 = 0;
            while (at < batch.list_size) : (at += lanes) {
                const place = splat(U, at) + warp.lane();
                const there = place < splat(U, self.len);
                const item = warp.select(K, there, warp.load(K, self.items, place, there), splat(K, no_key));
                warp.store(K, out, place, item, place < splat(U, batch.list_size));
            }
            self.write_counters(query);
        }

        inline fn write_counters(self: *const Self, query: u32) void {
            const counters = warp.at_address(layout.Counters, self.batch.counters);
            if (!warp.on_device) {
                counters[query] = .{ .len = self.len, .expanded = self.expanded, .estimates = self.estimates };
            } else if (warp.lane() == 0) counters[query] = .{ .len = self.len, .expanded = self.expanded, .estimates = self.estimates };
        }
    };
}
