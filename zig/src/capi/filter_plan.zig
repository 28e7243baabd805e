//! What the planner of filtered searches expects and chooses, for `explain`.
const std = @import("std");
const filter_room = @import("filter");
const search = @import("search");
const common = @import("common.zig");
const open = @import("open.zig");

pub const Cost = extern struct {
    /// 0: the plan cannot be had as the index is open.
    possible: u32 = 0,
    reserved: u32 = 0,
    reads: f64 = 0,
    estimates: f64 = 0,
    expanded: f64 = 0,
    us: f64 = 0,

    fn of(cost: search.filter_plan.Cost) Cost {
        return .{
            .possible = @intFromBool(cost.possible),
            .reads = cost.reads,
            .estimates = cost.estimates,
            .expanded = cost.expanded,
            .us = cost.ns / 1000,
        };
    }
};

pub const Plan = extern struct {
    struct_size: u32 = @sizeOf(Plan),
    plan: i32 = 0,
    matches: f64 = 0,
    matches_exact: u32 = 0,
    list_size: u32 = 0,
    scan: Cost = .{},
    gate: Cost = .{},
    late: Cost = .{},
    gate_needs_bytes: u64 = 0,
};

export fn velo_filter_plan(handle: ?*open.Index, filter: ?*const filter_room.Filter, options: ?*const open.SearchOptions, plan_out: ?*Plan) i32 {
    const self = handle orelse return common.null_argument("index");
    const one = filter orelse return common.null_argument("filter");
    const given = options orelse return common.null_argument("options");
    const out = plan_out orelse return common.null_argument("plan_out");
    if (self.enter()) |status| return status;
    defer self.leave();
    const o = common.versioned(open.SearchOptions, given) orelse return common.size_error("options", given.struct_size);
    if (open.refused(&o)) |status| return status;
    if (open.foreign(self, one, 0)) |status| return status;
    const parameters = open.resolved(&o, self.calibration());
    const choice = search.filter_plan.Case.of(&self.shared, one, &parameters).choose();
    var plan: Plan = .{
        .plan = @intFromEnum(search.filter_plan.plan_of(&self.shared, one, &parameters)),
        .matches = one.estimate() * @as(f64, @floatFromInt(self.reader.n())),
        .matches_exact = @intFromBool(one.is_exact()),
        .list_size = parameters.list_size,
        .scan = .of(choice.scan),
        .gate = .of(choice.gate),
        .late = .of(choice.late),
        .gate_needs_bytes = if (choice.gate.possible) 0 else self.reader.bytes_with_links(),
    };
    common.write_versioned(Plan, out, &plan);
    return common.ok;
}
