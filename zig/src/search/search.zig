//! Searching an open index: one query's state machine, many queries on one device, counters.
const shared = @import("shared.zig");
const query = @import("query.zig");

pub const Shared = shared.Shared;
pub const Plan = shared.Plan;
pub const File = shared.File;
pub const CacheBudget = shared.Budget;
pub const open_cache = shared.open_cache;
pub const PageCaches = shared.PageCaches;
pub const Cache = @import("cache").Cache;
pub const PageLoader = @import("page_loader.zig").PageLoader;
pub const Search = query.Search;
pub const prepare = query.prepare;
pub const Stop = @import("list.zig").List.Stop;
pub const Elsewhere = job.Elsewhere;
pub const Navigated = job.Navigated;
pub const expected_of_every = @import("rescoring.zig").expected_of_every;
pub const parameters = @import("parameters.zig");
pub const Parameters = parameters.Parameters;
pub const FilterPlan = parameters.FilterPlan;
pub const calibration = @import("calibration.zig");
pub const Calibration = calibration.Calibration;
pub const engine = @import("engine.zig");
pub const Engine = engine.Engine;
pub const EngineOptions = engine.Options;
pub const filter_plan = @import("filter_plan.zig");
pub const job = @import("job.zig");
pub const Job = job.Job;
pub const JobSegment = job.JobSegment;
pub const Segment = job.Segment;
pub const Answers = job.Answers;
pub const Outcome = job.Outcome;
pub const introduce = @import("segments.zig").introduce;
pub const cost = @import("cost.zig");

test {
    _ = calibration;
    _ = cost;
    _ = engine;
    _ = filter_plan;
    _ = @import("engine.zig");
    _ = job;
    _ = @import("list.zig");
    _ = @import("pages.zig");
    _ = parameters;
    _ = query;
    _ = @import("rescoring.zig");
    _ = shared;
    _ = @import("walk.zig");
}
